// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective

const (
	// copyPiece is below the size from which Go's copy writes past the processor's cache (1 MiB on amd64).
	copyPiece = 512 << 10
	// copyCached is the largest copy that is meant to stay in the cache: what is larger would only displace what is in use.
	copyCached = 8 << 20
)

// Copy copies src to dst as copy does. A copy of a few MiB stays in the processor's cache, where the message that is made of it,
// or the caller that waits for it, finds it.
func Copy(dst, src []byte) int {
	n := min(len(dst), len(src))
	if n > copyCached {
		return copy(dst, src)
	}
	for at := 0; at < n; at += copyPiece {
		copy(dst[at:min(at+copyPiece, n)], src[at:])
	}
	return n
}
