VERSION: int

_Contents = tuple[list[tuple[str, int, str]], list[str]]

def read_directories(paths: list[bytes], part: bytes, most: int, /) -> list[_Contents | None]: ...
def check_directories(
    asked: list[tuple[bytes, bytes, bytes]], device: int, most: int, /
) -> list[_Contents | None]: ...
