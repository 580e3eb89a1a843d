from tests.tasks.runtimes.conftest import images, store, store_with_operators, words

__all__ = ["images", "store", "store_with_operators", "words"]
