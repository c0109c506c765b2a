"""Which tokens a sequence may take next, where its request does not leave that to the model alone."""

from __future__ import annotations

from collections import deque

import numpy as np

from ninfer.decoding import ConstraintState, TokenIds
from ninfer.engine.request import Thinking
from ninfer.errors import BackendError
from ninfer.text.channels import Channel, ThinkingTags


class Guide:
    """Ends thinking that is over its budget, and holds the answer behind it to a constraint.

    A thinking block of `budget` tokens that is still open gets `ThinkingTags.close_ids`, token by token, whatever the
    model would say. Under a constraint a block cannot end the completion, and the answer behind it begins with
    `ThinkingTags.behind_ids`, as templates have it; what follows is the constraint's alone, and end tokens are allowed
    exactly where it is fulfilled.
    """

    def __init__(
        self,
        tags: ThinkingTags,
        thinking: Thinking | None,
        constraint: ConstraintState | None,
        end_tokens: frozenset[int],
    ) -> None:
        self._tags = tags
        self._budget = None if thinking is None else thinking.budget
        self._may_open = thinking is not None and thinking.start == "possible"
        self._constraint = constraint
        self._end_tokens = end_tokens
        self._forced: deque[int] = deque()
        self._num_thinking = 0
        if thinking is not None and thinking.start == "open" and self._budget == 0:
            self._forced.extend(tags.close_ids)

    def allowed(self, channel: Channel, num_tokens: int) -> TokenIds | None:
        """Ids that may come next, None for all `num_tokens`. BackendError as `ConstraintState.allowed`."""
        if self._forced:
            return np.array([self._forced[0]], dtype=np.int64)
        if self._constraint is None:
            return None
        if channel is Channel.THINKING:
            return np.setdiff1d(np.arange(num_tokens), list(self._end_tokens), assume_unique=True)
        ids = np.setdiff1d(self._constraint.allowed(num_tokens), list(self._end_tokens), assume_unique=True)
        if self._constraint.is_complete:
            ids = np.union1d(ids, [token for token in self._end_tokens if token < num_tokens])
        if self._may_open and self._tags.open_id is not None:
            ids = np.union1d(ids, [self._tags.open_id])
        return ids

    def follow(self, token: int, before: Channel, after: Channel) -> None:
        """Go on by the token that was chosen; `before` and `after` it the text was in these channels.

        BackendError when a block ends within a token that says more, or the constraint refuses the token.
        """
        opens = self._may_open and token == self._tags.open_id
        self._may_open = False
        if self._forced:
            self._forced.popleft()
            return
        if after is Channel.THINKING:
            self._num_thinking += before is Channel.THINKING
            if self._num_thinking == self._budget:
                self._forced.extend(self._tags.close_ids)
        elif before is Channel.THINKING:
            if self._constraint is not None:
                self._forced.extend(self._tags.behind_ids)
        elif self._constraint is not None and not opens:
            self._constraint.advance(token)


def require_clean_close(text: str) -> None:
    """BackendError unless what a token says behind the end of thinking is white space, which no constraint sees."""
    if text.strip():
        raise BackendError("a token ended the thinking and began the answer, which a constraint cannot follow")
