"""The pool of equal KV blocks of one engine, with prefixes that several requests share (counted once)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Prefix:
    """A shared prefix whose KV is in the pool: its whole blocks, and how many requests hold it now."""

    blocks: int
    holders: int = 0


class BlockPool:
    """Counts blocks. Prefixes that nobody holds are free blocks that still have their content."""

    def __init__(self, num_gpu_blocks: int) -> None:
        """`num_gpu_blocks` as configured; one of them, vLLM's null block, is never handed out."""
        self.total = num_gpu_blocks - 1
        self.used = 0
        self.hidden = 0  # taken away by a fault: neither used nor free
        self.prefixes: dict[str, Prefix] = {}

    @property
    def free(self) -> int:
        """Blocks that can be handed out; below 0 only while a fault has just taken blocks away."""
        return self.total - self.hidden - self.used

    @property
    def usage(self) -> float:
        """Used blocks over total, 0..1, as `kv_cache_usage_perc`."""
        return self.used / self.total

    def take(self, blocks: int) -> bool:
        """Hand out `blocks`, or none and False. Prefixes that nobody holds are forgotten when there is need."""
        if blocks > self.free:
            return False
        self.used += blocks
        self._forget_overwritten()
        return True

    def give_back(self, blocks: int) -> None:
        """Return blocks to the pool."""
        self.used -= blocks

    def cached_blocks(self, key: str | None) -> int:
        """Whole blocks of the prefix whose content is in the pool; 0 when unknown."""
        prefix = self.prefixes.get(key) if key is not None else None
        return prefix.blocks if prefix else 0

    def blocks_to_hold(self, key: str) -> int:
        """Free blocks that holding the prefix would take: its own while nobody holds it, else none."""
        prefix = self.prefixes[key]
        return 0 if prefix.holders else prefix.blocks

    def hold(self, key: str) -> None:
        """One more request reads the prefix. Callers check `blocks_to_hold` first."""
        prefix = self.prefixes[key]
        if not prefix.holders:
            self.used += prefix.blocks
        prefix.holders += 1
        self._forget_overwritten()

    def let_go(self, key: str) -> None:
        """One request fewer reads it; the last one frees the blocks, whose content stays until they are needed."""
        prefix = self.prefixes[key]
        prefix.holders -= 1
        if not prefix.holders:
            self.used -= prefix.blocks

    def adopt(self, key: str, blocks: int) -> bool:
        """Make `blocks` already handed out the shared copy, held once. False when there is a copy already."""
        if key in self.prefixes or not blocks:
            return False
        self.prefixes[key] = Prefix(blocks, holders=1)
        return True

    def _forget_overwritten(self) -> None:
        if not self.prefixes:
            return
        unheld = [(key, prefix.blocks) for key, prefix in self.prefixes.items() if not prefix.holders]
        excess = sum(blocks for _, blocks in unheld) - self.free
        for key, blocks in unheld:  # oldest first
            if excess <= 0:
                return
            del self.prefixes[key]
            excess -= blocks
