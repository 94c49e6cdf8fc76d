// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package filestore is a store in a file that Go and Python processes share, in PyTorch's format and with its locking.
//
// It corresponds to torch.distributed.FileStore. The file must be on a file system that all processes share and on which
// flock works between them (local disks and tmpfs; NFS if it maps flock to byte-range locks).
//
//	s, err := filestore.Open(ctx, path, filestore.WithWorldSize(4))
//	if err != nil { ... }
//	defer s.Close() // the last of the four to close removes the file
//
// # The file
//
// The file is a log of records, each a key and a value, both a 32-bit little-endian length and bytes. User keys begin
// with "/"; a record with the key "-/k" deletes "/k"; "refcount/" and "cleanup/" count open and closed handles. A reader
// replays what was added since it last looked; the file never shrinks while it is in use. PyTorch 1.13 has no
// "refcount/"; otherwise its files are the same as those of 2.6, and both versions may use one file together with Go.
//
// # Opening and closing
//
// As in PyTorch 2.6, Open increments "refcount/", and Close decrements it and increments "cleanup/". The Close that
// brings "refcount/" to 0 removes the file if "cleanup/" has reached the world size. Without a world size the file stays.
// PyTorch 1.13 looks only at "cleanup/" and removes the file when it equals its own world size, even while others use it.
// NumKeys counts these two keys, as PyTorch does.
//
// The last Close removes the file even if the disk is full. Any other Close on a full disk fails unless the end of the file
// has a little room left, and its error says so: the file still counts that handle, and stays. PyTorch's process aborts there.
//
// # Damaged and removed files
//
// If a path cannot be used, or a file is truncated or not a store, Open returns an error and leaves the file unchanged:
// nothing is written before all of it has been read and understood. A write that fails half-way (a full disk) is undone
// by truncating the file to its old size under the lock.
//
// A process that is killed while it writes can leave the beginning of a record at the end of the file. A handle that was
// already open recognises this (the lock is free, yet the last record is incomplete), truncates the incomplete record
// under the exclusive lock and continues: no reader can have used it. A handle that finds it while opening the file
// cannot tell it from a damaged file and returns an error; [Repair] truncates it on demand. PyTorch itself spins for ever
// on such a file while it holds the lock; operations here then end at their deadline or timeout.
//
// If the file is removed or replaced while it is in use, the store is lost: its handles return [cohort.Replaced] from then
// on, instead of continuing with an empty store. So they do if the file is emptied and written anew, which they notice at the latest
// when they write, because the bytes that they have already read have changed. A file that is shorter than it was is damaged:
// [cohort.Protocol].
//
// # No checksums
//
// PyTorch's format has no checksum. If a bit flips on the disk, or a process writes into the file by other means, a
// changed key or value goes unnoticed as long as the lengths still fit. Where that matters, use a tcp:// store.
//
// # Waiting
//
// Waits poll the file's size, at most every ten milliseconds, and take the lock only when it has changed.
package filestore
