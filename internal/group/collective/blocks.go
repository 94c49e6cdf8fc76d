// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective

// Counts are the bytes that each of n ranks has in a buffer, or nil where all have the same.

// BlockSize is the length of rank i's block in a buffer of total bytes.
func BlockSize(total int, counts []int, n, i int) int {
	if counts == nil {
		return total / n
	}
	return counts[i]
}

// Block is rank i's block of buf.
func Block(buf []byte, counts []int, n, i int) []byte {
	if counts == nil {
		size := len(buf) / n
		return buf[i*size : (i+1)*size]
	}
	from := 0
	for _, c := range counts[:i] {
		from += c
	}
	return buf[from : from+counts[i]]
}

// fits reports whether a buffer of total bytes is exactly as long as counts say, or divides evenly.
func fits(total int, counts []int, n int) bool {
	if counts == nil {
		return total%n == 0
	}
	if len(counts) != n {
		return false
	}
	for _, c := range counts {
		if c < 0 || c > total {
			return false
		}
		total -= c
	}
	return total == 0
}

// Even reports whether all counts are the same.
func Even(counts []int) bool {
	for _, c := range counts {
		if c != counts[0] {
			return false
		}
	}
	return true
}

// Parts is a buffer of whole elements that is cut into one contiguous part per rank, as evenly as possible.
type Parts struct {
	Total, Elem, Ranks int
}

// Of returns the part of rank i: elements are dealt out evenly, the first ranks take one more.
func (p Parts) Of(i int) (from, to int) {
	count := p.Total / p.Elem
	each, rest := count/p.Ranks, count%p.Ranks
	from = i*each + min(i, rest)
	to = from + each
	if i < rest {
		to++
	}
	return from * p.Elem, to * p.Elem
}

// Longest returns the size of the longest part.
func (p Parts) Longest() int {
	from, to := p.Of(0)
	return to - from
}

// Segment returns segment s of the range [from, to) in pieces of size bytes; it is empty past the end.
func Segment(from, to, size, s int) (int, int) {
	a := min(from+s*size, to)
	return a, min(a+size, to)
}

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
