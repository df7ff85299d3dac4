"""Errors before a listener is up, each with one line that says what to do."""


class WebError(Exception):
    """An error of this package that the user can fix."""


class ListenError(WebError):
    """An address or a port that cannot be listened on."""


class TokenError(WebError):
    """A token, or a token file, that must not be used."""


class ServeError(WebError):
    """An application that could not be started."""
