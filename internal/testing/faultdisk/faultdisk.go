// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package faultdisk is a disk in memory for tests of the store's log: it fails where it is told to, and shows what is left
// after a process was killed or the power was lost.
//
// It keeps what a real disk keeps. Data is in a cache until it is synced, and when the power is lost, any of the cached
// sectors may be on the disk and any may not. Names that were created, renamed and removed reach the disk in their order,
// and all of them with the next sync of the folder. After a failed sync, sectors that did not reach the disk are forgotten:
// later syncs succeed without them.
package faultdisk

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cohort-dist/cohort/internal/store/storelog"
)

const sector = 512

// Op is an operation that may fail.
type Op struct {
	N    int    // 1 for the first operation of the disk
	Kind string // "list", "create", "open", "rename", "remove", "syncdir", "read", "write", "sync"
	Name string // of the file, without its folder
}

// Disk implements storelog.Disk. The zero value is an empty disk.
type Disk struct {
	// Fault, if set, decides about each operation before it is done. A write that fails may have been done in part, a sync
	// too.
	Fault func(Op) error
	// Rand decides which part; without it, none is done.
	Rand *rand.Rand

	mu      sync.Mutex
	ops     int
	names   map[string]*node // what a process sees
	durable map[string]*node // what the disk has
	pending []change         // of names, in order
	locks   map[string]string
}

// change of names, which reaches the disk as a whole: one goes, if it is not empty, and one comes.
type change struct {
	gone, name string
	file       *node
}

// node is the content of a file.
type node struct {
	data, synced []byte
	dirty        map[int]bool // sectors that the next sync writes
}

// Ops returns the number of operations until now.
func (d *Disk) Ops() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ops
}

// Killed returns the disk that the next process finds when this one was killed: all that was written.
func (d *Disk) Killed() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.copy(func(*node) *node { return nil })
}

// PowerLost returns the disk as it may be after the power was lost.
func (d *Disk) PowerLost(random *rand.Rand) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	after := d.copy(func(n *node) *node { return n.lose(random) })
	for _, c := range after.pending[:random.IntN(len(after.pending)+1)] {
		c.apply(after.durable)
	}
	after.names, after.pending = maps.Clone(after.durable), nil
	return after
}

// copy copies the files; replace may return another one for a file.
func (d *Disk) copy(replace func(*node) *node) *Disk {
	copies := map[*node]*node{nil: nil}
	one := func(n *node) *node {
		if _, done := copies[n]; !done {
			if copies[n] = replace(n); copies[n] == nil {
				copies[n] = &node{slices.Clone(n.data), slices.Clone(n.synced), maps.Clone(n.dirty)}
			}
		}
		return copies[n]
	}
	after := &Disk{names: map[string]*node{}, durable: map[string]*node{}}
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		after.names[name] = one(d.names[name])
	}
	for _, name := range slices.Sorted(maps.Keys(d.durable)) {
		after.durable[name] = one(d.durable[name])
	}
	for _, c := range d.pending {
		after.pending = append(after.pending, change{c.gone, c.name, one(c.file)})
	}
	return after
}

func (c change) apply(names map[string]*node) {
	delete(names, c.gone)
	if c.file != nil {
		names[c.name] = c.file
	}
}

// lose returns what the disk has of a file: of each sector that was not synced, the old or the new content.
func (n *node) lose(random *rand.Rand) *node {
	left := slices.Clone(n.synced)
	for _, s := range slices.Sorted(maps.Keys(n.dirty)) {
		if random.IntN(2) == 0 {
			left = n.store(left, s)
		}
	}
	return &node{data: left, synced: slices.Clone(left), dirty: map[int]bool{}}
}

// store copies a sector from the cache.
func (n *node) store(to []byte, s int) []byte {
	from, end := s*sector, min((s+1)*sector, len(n.data))
	if end <= from {
		return to
	}
	to = grow(to, end)
	copy(to[from:end], n.data[from:end])
	return to
}

func grow(b []byte, size int) []byte {
	if len(b) < size {
		b = append(b, make([]byte, size-len(b))...)
	}
	return b
}

// Bytes returns the content of a file as a process sees it; nil if there is none.
func (d *Disk) Bytes(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.names[name]; n != nil {
		return n.data
	}
	return nil
}

// Names returns the names of all files.
func (d *Disk) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.names))
}

// With returns a copy of the disk in which a file has another content, or does not exist if that is nil.
func (d *Disk) With(name string, content []byte) *Disk {
	after := d.Killed()
	if content == nil {
		delete(after.names, name)
		delete(after.durable, name)
		return after
	}
	n := &node{slices.Clone(content), slices.Clone(content), map[int]bool{}}
	after.names[name], after.durable[name] = n, n
	return after
}

// begin counts an operation and asks whether it fails. The caller holds mu.
func (d *Disk) begin(kind, name string) error {
	if d.names == nil {
		d.names, d.durable = map[string]*node{}, map[string]*node{}
	}
	d.ops++
	if d.Fault == nil {
		return nil
	}
	if err := d.Fault(Op{d.ops, kind, filepath.Base(name)}); err != nil {
		return &fs.PathError{Op: kind, Path: name, Err: err}
	}
	return nil
}

// part returns how much of n is done before something fails.
func (d *Disk) part(n int) int {
	if d.Rand == nil {
		return 0
	}
	return d.Rand.IntN(n + 1)
}

// MakeDir implements storelog.Disk: the disk has any folder.
func (d *Disk) MakeDir(string) error { return nil }

// List implements storelog.Disk.
func (d *Disk) List(dir string) (names []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("list", dir); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		if filepath.Dir(name) == filepath.Clean(dir) {
			names = append(names, filepath.Base(name))
		}
	}
	return names, nil
}

// Lock implements storelog.Disk.
func (d *Disk) Lock(dir, text string) (io.Closer, string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if holder, held := d.locks[dir]; held {
		return nil, holder, storelog.ErrLocked
	}
	if d.locks == nil {
		d.locks = map[string]string{}
	}
	d.locks[dir] = text
	return unlock(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.locks, dir)
	}), "", nil
}

type unlock func()

func (u unlock) Close() error { u(); return nil }

// Create implements storelog.Disk.
func (d *Disk) Create(name string, size int64) (storelog.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("create", name); err != nil {
		return nil, err
	}
	if d.names[name] != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	n := &node{dirty: map[int]bool{}}
	n.write(make([]byte, size), 0)
	d.change(change{name: name, file: n})
	return &file{d, n, name}, nil
}

func (d *Disk) change(c change) {
	c.apply(d.names)
	d.pending = append(d.pending, c)
}

// Open implements storelog.Disk.
func (d *Disk) Open(name string) (storelog.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("open", name); err != nil {
		return nil, err
	}
	n := d.names[name]
	if n == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &file{d, n, name}, nil
}

// Rename implements storelog.Disk.
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("rename", to); err != nil {
		return err
	}
	n := d.names[from]
	if n == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	d.change(change{from, to, n})
	return nil
}

// Remove implements storelog.Disk.
func (d *Disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("remove", name); err != nil {
		return err
	}
	if d.names[name] == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	d.change(change{gone: name})
	return nil
}

// SyncDir implements storelog.Disk.
func (d *Disk) SyncDir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("syncdir", dir); err != nil {
		return err
	}
	for _, c := range d.pending {
		c.apply(d.durable)
	}
	d.pending = nil
	return nil
}

// file is an open file.
type file struct {
	d    *Disk
	n    *node
	name string
}

func (f *file) Close() error { return nil }

func (f *file) Size() (int64, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return int64(len(f.n.data)), nil
}

func (f *file) ReadAt(b []byte, at int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.begin("read", f.name); err != nil {
		return 0, err
	}
	n := copy(b, f.n.data[min(at, int64(len(f.n.data))):])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt writes to the cache. A failed write has written some whole sectors.
func (f *file) WriteAt(b []byte, at int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if at < 0 {
		return 0, fmt.Errorf("write %s at %d", f.name, at)
	}
	if err := f.d.begin("write", f.name); err != nil {
		whole := (int(at)+f.d.part(len(b)))/sector*sector - int(at)
		n := max(whole, 0)
		f.n.write(b[:n], int(at))
		return n, err
	}
	f.n.write(b, int(at))
	return len(b), nil
}

func (n *node) write(b []byte, at int) {
	n.data = grow(n.data, at+len(b))
	copy(n.data[at:], b)
	for s := at / sector; s*sector < at+len(b); s++ {
		n.dirty[s] = true
	}
}

// Sync writes the dirty sectors to the disk. A failed one has written some and forgets the others.
func (f *file) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	err := f.d.begin("sync", f.name)
	for _, s := range slices.Sorted(maps.Keys(f.n.dirty)) {
		if err == nil || f.d.part(1) == 1 {
			f.n.synced = f.n.store(f.n.synced, s)
		}
	}
	clear(f.n.dirty)
	return err
}
