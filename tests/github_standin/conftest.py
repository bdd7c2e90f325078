from tests.support.memory import memory, tmp_path

__all__ = ["memory", "tmp_path"]
