// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tensorpool lends large blocks of memory and takes each back when the garbage collector finds that nothing can
// reach it any more. A program that receives a tensor need not return it, and may keep it, or a slice of it, for ever.
//
// A new block costs more than receiving bytes into it, because the kernel faults in and clears every page. So a block has
// a finalizer, which puts it back into the pool instead of letting it be freed. That is as safe as garbage collection
// itself: a block returns only when its memory could have been given to another allocation. A block whose storage is
// released returns at once.
//
// The pool never triggers a collection. A program that wants its blocks back at once releases the tensors that it has
// received.
//
// Under the race detector memory is never reused, because the detector cannot know that the collector orders the last use
// of a block before the next.
package tensorpool
