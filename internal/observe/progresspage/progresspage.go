// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package progresspage is the page of memory in which a rank says what it is doing: its sections and its steps. The rank writes without a
// system call, and "cohort why" reads from outside. docs/wire/progress.md has the bytes; the Python package cohort_dist writes the same.
package progresspage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	// pageSize is that of the page.
	pageSize = headerSize + Threads*threadSize
	// memfdName is the name of the memory file, as links in /proc/PID/fd show it after "/memfd:".
	memfdName = "cohort-progress"
	// Threads is how many threads have a place.
	Threads = 15
	// maxDepth is how many nested sections of a thread are kept.
	maxDepth = 8
	// maxName is the longest name of a section.
	maxName = 56
	// unbound is the first number of a place that belongs to no thread: a Go program's sections follow goroutines.
	unbound = 1 << 31

	version     = 1
	headerSize  = 64
	sectionSize = 8 + maxName
	threadSize  = 8 + maxDepth*sectionSize
	magic       = "cohortpr"
)

// Page is what a rank says. Times are those of the kernel's monotonic clock.
type Page struct {
	// PID is the process that writes, as it sees itself: a child that was forked has the page of its parent mapped, too.
	PID int
	// Steps is how many steps it has done, and Stepped when it did the last one; zero if it has not said so.
	Steps   uint64
	Stepped time.Duration
	Threads []Thread
}

// Thread is what one thread is in.
type Thread struct {
	// ID is the thread's number, or from 2^31 on a number that means nothing.
	ID uint32
	// Sections are those that it is in, the outermost first, eight at most.
	Sections []Section
}

// Section is a part of the program that the rank has named. The name is what the rank wrote, and may have any characters.
type Section struct {
	Name  string
	Since time.Duration
}

// decode reads a page. What is not in use is left out.
func decode(b []byte) (Page, error) {
	if len(b) != pageSize || string(b[:8]) != magic {
		return Page{}, fmt.Errorf("progresspage: %d bytes are not a page of %d bytes that begins with %q", len(b), pageSize, magic)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != version {
		return Page{}, fmt.Errorf("progresspage: the page has version %d and this program knows %d: use the same version of cohort",
			v, version)
	}
	p := Page{
		PID: int(binary.LittleEndian.Uint32(b[12:])), Steps: binary.LittleEndian.Uint64(b[16:]),
		Stepped: duration(b[24:]),
	}
	for i := range Threads {
		if t := decodeThread(b[headerSize+i*threadSize:][:threadSize]); len(t.Sections) > 0 {
			p.Threads = append(p.Threads, t)
		}
	}
	return p, nil
}

func decodeThread(b []byte) Thread {
	t := Thread{ID: binary.LittleEndian.Uint32(b)}
	depth := binary.LittleEndian.Uint32(b[4:])
	if t.ID == 0 {
		return t
	}
	for i := range min(depth, maxDepth) {
		s := b[8+i*sectionSize:][:sectionSize]
		name, _, _ := strings.Cut(string(s[8:]), "\x00")
		t.Sections = append(t.Sections, Section{strings.ToValidUTF8(name, "\uFFFD"), duration(s)})
	}
	return t
}

// duration reads a time; one that does not fit is 0, which is not known.
func duration(b []byte) time.Duration {
	return max(0, time.Duration(binary.LittleEndian.Uint64(b))) //nolint:gosec // what becomes negative is 0
}

// Innermost is the section that the rank is in, by its main thread, else the one that was begun last; false if it is in none.
func (p Page) Innermost() (Section, bool) {
	var last Section
	found := false
	for _, t := range p.Threads {
		s := t.Sections[len(t.Sections)-1]
		if int64(t.ID) == int64(p.PID) {
			return s, true
		}
		if !found || s.Since > last.Since {
			last, found = s, true
		}
	}
	return last, found
}

// cut shortens a name to what fits, at the end of a rune, and at the first byte 0.
func cut(name string) string {
	name, _, _ = strings.Cut(name, "\x00")
	if len(name) <= maxName {
		return name
	}
	n := maxName
	for n > 0 && !utf8.RuneStart(name[n]) {
		n--
	}
	return name[:n]
}

// putHeader writes what does not change.
func putHeader(b []byte, pid int) {
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], version)
	binary.LittleEndian.PutUint32(b[12:], uint32(pid)) //nolint:gosec // process numbers are positive and small
}

// putSteps writes the number of steps and when the last one was done.
func putSteps(b []byte, steps uint64, now time.Duration) {
	binary.LittleEndian.PutUint64(b[16:], steps)
	binary.LittleEndian.PutUint64(b[24:], uint64(now)) //nolint:gosec // monotonic
}

// putSection writes the only section of a place, and claims the place.
func putSection(b []byte, place int, name string, now time.Duration) {
	t := b[headerSize+place*threadSize:][:threadSize]
	clear(t[8:][:sectionSize])
	binary.LittleEndian.PutUint64(t[8:], uint64(now)) //nolint:gosec // monotonic
	copy(t[16:][:maxName], cut(name))
	binary.LittleEndian.PutUint32(t[4:], 1)
	binary.LittleEndian.PutUint32(t, unbound+uint32(place)) //nolint:gosec // small
}

// endSection frees a place.
func endSection(b []byte, place int) {
	clear(b[headerSize+place*threadSize:][:8])
}

// Writer writes the page of this process. The zero value is ready; the page exists from the first call on. On a system that cannot make
// it, all methods do nothing.
type Writer struct {
	mu struct {
		sync.Mutex
		opened bool
		page   []byte // nil: there is none
		steps  uint64
		used   uint32 // places, a bit each
	}
}

// StepTo says that the rank has done this many steps.
func (w *Writer) StepTo(steps uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.openLocked() {
		w.mu.steps = steps
		putSteps(w.mu.page, steps, Now())
	}
}

// Step says that the rank has done one more step.
func (w *Writer) Step() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.openLocked() {
		w.mu.steps++
		putSteps(w.mu.page, w.mu.steps, Now())
	}
}

// Begin says that the rank is in a section now, and returns its place; -1 if all are taken, which End accepts.
func (w *Writer) Begin(name string) (place int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	place = bits.TrailingZeros32(^w.mu.used)
	if !w.openLocked() || place >= Threads {
		return -1
	}
	w.mu.used |= 1 << place
	putSection(w.mu.page, place, name, Now())
	return place
}

// End ends what Begin has begun.
func (w *Writer) End(place int) {
	if place < 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.used &^= 1 << place
	endSection(w.mu.page, place)
}

// openLocked makes the page once, and reports whether there is one.
func (w *Writer) openLocked() bool {
	if !w.mu.opened {
		w.mu.opened = true
		if w.mu.page = create(); w.mu.page != nil {
			putHeader(w.mu.page, os.Getpid())
		}
	}
	return w.mu.page != nil
}

// Age is how long ago a time of a page was; 0 if it is not known.
func Age(since time.Duration) time.Duration {
	if since == 0 {
		return 0
	}
	return max(0, Now()-since)
}

const (
	// mostFiles is how many open files of a process are looked at.
	mostFiles = 1 << 14
	// attempts is how often a page is read that changes while it is read.
	attempts = 4
)

// Find reads the page of a process below the folder proc. own is the number that the process has for itself, which is another one in a
// container. It reports false if there is none, or if it may not be read.
func Find(proc string, pid, own int) (Page, bool) {
	folder := filepath.Join(proc, strconv.Itoa(pid), "fd")
	dir, err := os.Open(folder) //nolint:gosec // a folder of the kernel
	if err != nil {
		return Page{}, false
	}
	names, _ := dir.Readdirnames(mostFiles)
	_ = dir.Close()
	for _, name := range names {
		link, err := os.Readlink(filepath.Join(folder, name))
		if err != nil || link != "/memfd:"+memfdName+" (deleted)" {
			continue
		}
		if p, err := read(filepath.Join(folder, name)); err == nil && p.PID == own {
			return p, true
		}
	}
	return Page{}, false
}

// read reads a page until it does not change meanwhile.
func read(name string) (Page, error) {
	f, err := os.Open(name) //nolint:gosec // a memory file of the process that is looked at
	if err != nil {
		return Page{}, err
	}
	defer func() { _ = f.Close() }()
	var before, now [pageSize + 1]byte
	for n := 0; ; n++ {
		got, err := f.ReadAt(now[:], 0)
		if err != nil && err != io.EOF {
			return Page{}, err
		}
		if n >= attempts || n > 0 && bytes.Equal(before[:], now[:]) {
			return decode(now[:got])
		}
		before = now
	}
}
