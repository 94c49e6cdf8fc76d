// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package filestore is a store in a file that Go and Python processes share, in PyTorch's format and with its locking.
//
// It corresponds to torch.distributed.FileStore. The file must be on a file system that all processes see and on which
// flock works among them (local disks and tmpfs do; NFS does where it maps flock to byte-range locks).
//
//	s, err := filestore.Open(ctx, path, filestore.WithWorldSize(4))
//	if err != nil { ... }
//	defer s.Close() // the last of the four to close removes the file
//
// # The file
//
// The file is a log of records, each a key and a value, both a 32-bit little-endian length and bytes. User keys begin
// with "/"; a record with the key "-/k" deletes "/k"; "refcount/" and "cleanup/" count open and closed handles. A reader
// replays what was added since it last looked; the file never shrinks while it is used. Files of PyTorch 1.13, which has
// no "refcount/", and of 2.6 are alike otherwise, and both versions may use one file together with Go.
//
// # Opening and closing
//
// As in PyTorch 2.6, Open counts the handle in "refcount/" and Close counts it out and counts "cleanup/" up; the Close
// that brings the first to 0 removes the file if "cleanup/" has reached the world size. Without a world size the file
// stays. PyTorch 1.13 looks at "cleanup/" alone and removes the file at exactly its own world size, even under the eyes
// of other users. NumKeys counts these two keys as PyTorch does.
//
// # What cannot go wrong
//
// A path that cannot be used, or a file that is truncated or is no store, is an error at once and the file is left as it
// is: nothing is written before all of it was read and understood. A write that fails half-way (a full disk) is taken
// back by cutting the file to its old size under the lock.
//
// A process that is killed while it writes can leave the beginning of a record at the end. A handle that was open before
// that recognises it (the lock is free, yet the last record is unfinished), cuts it off under the exclusive lock and goes
// on: no reader can have used it. A handle that finds it when it opens the file cannot tell it from a damaged file and
// returns an error; [Repair] cuts it off on demand. PyTorch itself spins for ever on such a file, holding its lock;
// operations here then end by their context or timeout.
//
// A file that is removed or replaced while it is used is the end of that store: handles that used it return [dist.Replaced]
// from then on, instead of going on with an empty one.
//
// # What can go wrong
//
// PyTorch's format has no checksum: a bit that flips on the disk, or a process that writes into the file by other means,
// changes a key or a value and nobody notices, as long as the lengths still fit. Where that matters use a tcp:// store.
//
// # Waiting
//
// Waits poll the file's size, every ten milliseconds at most, without taking the lock while nothing has changed.
package filestore
