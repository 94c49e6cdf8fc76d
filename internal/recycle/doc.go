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
// When the collector runs is the program's business: the pool never asks for a collection. A program that wants its blocks
// back at once releases the tensors that it has received.
//
// Under the race detector memory is always fresh: it cannot know that the collector orders the last use of a block before
// the next.
package recycle
