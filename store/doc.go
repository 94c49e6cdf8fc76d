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
// [Store] is the core that every store has; a store of your own needs no more. What some stores can do beyond it are
// small interfaces ([Appender], [MultiGetter], [MultiSetter], [Queuer], [Lister]), used through functions of this
// package, which fall back on the core where a store lacks them:
//
//	function               fallback on a store that lacks it
//	Append                 compare-and-set loop
//	MultiGet, MultiSet     one key after the other
//	QueuePush, -Pop, -Len  the queue in one value, by compare-and-set
//	ListKeys               none: ErrNotSupported
//	Barrier                always built on the core
//
// [Supports] says whether a store does something by itself, through any number of prefixes. The suite in package
// storetest checks a store of your own.
//
// # Waiting
//
// Whatever can wait takes a context. Its deadline wins; without one the store's timeout ends the wait ([Store.Timeout],
// 300 s unless changed, zero or less for none). Both give an error that matches [ErrTimeout] and
// context.DeadlineExceeded; a cancelled context gives one that matches context.Canceled; Close gives [ErrClosed] to all
// that wait on that handle. After any of these a store remains usable.
//
// # Errors
//
// Errors are *dist.Error values that name operation and key; compare with errors.Is and the Err... constants here.
//
// # Numbers
//
// Add reads a value as C's stoll does, as PyTorch: white space before and anything behind the number are ignored
// ("  12abc" plus 1 is 13), sums wrap around at 64 bits, a value without a number is [ErrNotANumber] and stays as it
// was. An empty value counts as 0 in Memory and filestore and is no number in tcpstore, again as in PyTorch.
//
// # Concurrency
//
// All stores are safe for concurrent use, and a call that waits does not hold up others.
package store
