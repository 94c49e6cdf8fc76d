// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package store holds the key-value stores through which the processes of a job find each other.
//
// A store maps keys to bytes and can wait for a key to appear. That is enough to exchange addresses, to count who has
// arrived and to agree on a leader, and it is all that rendezvous, process groups and RPC need to start.
//
//	s := store.NewMemory()                          // or filestore.Open, tcpstore.Dial
//	defer s.Close()
//	ranks := store.Prefix("ranks", s)               // the keys "ranks/..."
//	n, err := ranks.Add(ctx, "count", 1)            // counters are decimal text
//	err = ranks.Set(ctx, "addr/0", []byte(address))
//	peer, err := ranks.Get(ctx, "addr/1")           // waits until rank 1 has set it
//
// # Which store
//
//	Memory              one process; goroutines as ranks, tests            torch.distributed.HashStore
//	filestore.Store     one machine or a shared folder; also with Python   torch.distributed.FileStore
//	tcpstore.Client     any machines; also with Python                     torch.distributed.TCPStore
//	PrefixStore         a part of another store                            torch.distributed.PrefixStore
//
// # Core and optional operations
//
// [Store] is the core that every store has; your own store needs no more. Operations that only some stores have are small
// interfaces ([Appender], [MultiGetter], [MultiSetter], [Queuer], [Lister]). Use them through the functions of this
// package, which fall back on the core if a store lacks them:
//
//	function               fallback on a store that lacks it
//	Append                 compare-and-set loop
//	MultiGet, MultiSet     one key after another
//	QueuePush, -Pop, -Len  the queue in one value, by compare-and-set
//	ListKeys               none: ErrNotSupported
//	Barrier                always built on the core
//
// [Supports] reports whether a store implements an operation itself, through any number of prefixes. The suite in package
// storetest checks your own store.
//
// # Waiting
//
// Every call that can wait takes a context. If the context has no deadline, the store's timeout applies ([Store.Timeout],
// 300 s by default, zero or less for none). Either gives an error that matches [ErrTimeout] and context.DeadlineExceeded.
// A cancelled context gives an error that matches context.Canceled. Close ends all waits on its handle with [ErrClosed].
// After a timeout or a cancellation the store remains usable.
//
// # Errors
//
// Errors are *cohort.Error values that name operation and key; compare with errors.Is and the Err... constants here.
//
// # Numbers
//
// Like PyTorch, Add reads a value as C's stoll does: white space before the number and anything after it are ignored ("
// 12abc" plus 1 is 13). Sums wrap around at 64 bits. A value without a number gives [ErrNotANumber] and stays unchanged.
// As in PyTorch, an empty value counts as 0 in Memory and filestore, and is not a number in tcpstore.
//
// # Concurrency
//
// All stores are safe for concurrent use, and a call that waits does not block others.
package store
