"""How a call is refused, with the codes that the services use."""

from __future__ import annotations

from hdp.contract.errors import HdpError


class ServiceError(HdpError):
    """The answer to a call that isn't served. ``code`` is what clients look at."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        """status: of HTTP; 500 and above tell a client to try again."""
        self.code, self.message, self.status = code, message, status
        super().__init__(f"{code}: {message}")


def validation(message: str) -> ServiceError:
    """SageMaker's answer to what can't be asked."""
    return ServiceError("ValidationException", message)


def no_such_job(name: str) -> ServiceError:
    """SageMaker's answer for a job that isn't there: clients know it by its first sentence."""
    return validation(f"Requested resource not found. No training job is called {name!r} here.")


def invalid_parameter(message: str) -> ServiceError:
    """Logs' answer to what can't be asked."""
    return ServiceError("InvalidParameterException", message)


def not_found(message: str) -> ServiceError:
    """Logs' answer for a group or stream that isn't there."""
    return ServiceError("ResourceNotFoundException", message)
