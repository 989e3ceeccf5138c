"""Publishing: one durable write per event (C-10, C-11), and the wait for those under way (C-24)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from streamhold._backends.redis.place import Place
from streamhold._backends.stamp import created_now, new_id
from streamhold._backends.store import Store
from streamhold._core.envelope import encode, envelope
from streamhold.errors import BackendError, OutcomeUnknown, PublishError, PublishOutcomeUnknown

__all__ = ["Publisher"]


class _Wave:
    """The publishes that began between two calls of `flush`."""

    __slots__ = ("done", "under_way")

    def __init__(self) -> None:
        self.under_way = 0
        self.done: asyncio.Future[None] | None = None


class Publisher:
    """Writes events."""

    def __init__(self, client: Store, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._wave = _Wave()
        self._earlier: list[_Wave] = []

    async def publish(self, place: Place, event: Mapping[str, Any]) -> None:
        """Write one event.

        Raises:
            ConfigError: the event is nothing that JSON can express; nothing was sent.
            PublishOutcomeUnknown: the reply was lost.
            PublishError: it was not written; the cause says why.
        """
        payload = encode(envelope(event, new_id(), created_now()))
        wave = self._wave
        wave.under_way += 1
        try:
            await self._client.execute_prepared(place.write, payload, timeout=self._timeout)
        except OutcomeUnknown as error:
            raise PublishOutcomeUnknown(place.topic, f"it may or may not be in the topic: {error}") from error
        except BackendError as error:
            raise PublishError(place.topic, str(error), retryable=error.retryable) from error
        finally:
            wave.under_way -= 1
            if not wave.under_way and wave.done is not None and not wave.done.done():
                wave.done.set_result(None)

    async def flush(self) -> None:
        """Wait for the publishes that have begun, whatever becomes of them; later ones do not hold it up."""
        if self._wave.under_way:
            self._earlier.append(self._wave)
            self._wave = _Wave()
        self._earlier = [wave for wave in self._earlier if wave.under_way]
        for wave in list(self._earlier):
            if wave.under_way:
                if wave.done is None:
                    wave.done = asyncio.get_running_loop().create_future()
                await asyncio.shield(wave.done)
