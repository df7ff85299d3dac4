"""What goes wrong before a listener is up, each in one line that says what to do."""


class WebError(Exception):
    """Anything this package could not do that a user can mend."""


class ListenError(WebError):
    """An address or a port that cannot be listened on."""


class TokenError(WebError):
    """A token, or a file of one, that must not be used."""


class ServeError(WebError):
    """An application that could not be started."""
