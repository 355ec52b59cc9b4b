"""Refusals of requests, and budgets of memory that requests share."""

import threading


class Refusal(Exception):
    """A request that is not served, with the status of HTTP and the reason."""

    def __init__(self, status: int, reason: str, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after  # seconds after which the client may try again

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | (
            {"WWW-Authenticate": 'Bearer, Basic realm="rewardedit"'} if self.status == 401 else {}
        )


class Budget:
    """Bytes that all requests together may hold; may be used by several threads."""

    def __init__(self, limit: int, what: str) -> None:
        self.limit = limit
        self.what = what
        self.held = 0
        self._lock = threading.Lock()

    def add(self, amount: int) -> None:
        """Adds bytes, or gives them back if `amount` is negative.

        Raises:
            Refusal: 429 if they are more than are left; none are added.
        """
        with self._lock:
            if amount > 0 and self.held + amount > self.limit:
                raise Refusal(429, f"{self.what}: {self.limit // 2**20} MiB are in use; try again", 1)
            self.held += amount


class Reservation:
    """One request's share of a budget, given back at the end of the block."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.held = 0
        self._lock = threading.Lock()

    def take(self, amount: int) -> None:
        """Takes further bytes.

        Raises:
            Refusal: 413 if the request alone exceeds the budget, 429 if others hold too much of it.
        """
        with self._lock:
            if self.held + amount > self.budget.limit:
                limit = self.budget.limit // 2**20
                raise Refusal(413, f"{self.budget.what}: expected at most {limit} MiB; send fewer items")
            self.budget.add(amount)
            self.held += amount

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *_: object) -> None:
        self.budget.add(-self.held)
        self.held = 0
