// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import "io"

// Disk is what the log asks of a file system. Tests and simulations pass one that fails.
type Disk interface {
	// MakeDir makes a folder, and those above it.
	MakeDir(dir string) error
	// List returns the names of the files in a folder.
	List(dir string) ([]string, error)
	// Lock locks the folder until the result is closed, and leaves text for those who find it locked. They get
	// ErrLocked and the text.
	Lock(dir, text string) (io.Closer, string, error)
	// Create makes a file that does not exist yet, of the given size, with all its bytes written as zero.
	Create(name string, size int64) (File, error)
	// Open opens an existing file to read and write.
	Open(name string) (File, error)
	// Rename replaces a file.
	Rename(from, to string) error
	// Remove removes a file.
	Remove(name string) error
	// SyncDir makes what was created, renamed and removed in a folder durable.
	SyncDir(dir string) error
}

// File is an open file.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	// Sync makes what was written durable, and the size.
	Sync() error
}
