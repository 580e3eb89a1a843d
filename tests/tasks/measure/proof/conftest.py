from tests.tasks.runtimes.conftest import images, store, words

__all__ = ["images", "store", "words"]
