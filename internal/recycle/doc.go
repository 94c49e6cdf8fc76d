// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package recycle lends large blocks of memory and takes each back when nobody can reach it any more, as the garbage
// collector finds: whoever received a tensor need not give it back, and may keep it, or a slice of it, for ever.
//
// A fresh block costs more than the bytes that are received into it: the kernel faults in and clears every page. So a
// block has a finalizer, which does not let it die but puts it back. That is sound for the reason that the collector
// itself is: a block comes back only where its memory would otherwise have been given to another allocation. A block
// whose storage is released comes back at once.
//
// A collection is asked for when enough was lent since the last one, measured by what the collection costs: a program
// with a large heap, or one that keeps what it receives, sees few or none.
//
// Under the race detector memory is always fresh: it cannot know that the collector orders the last use of a block before
// the next.
package recycle
