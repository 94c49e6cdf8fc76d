// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package stacks

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Reader reads processes. It remembers where the Pythons it has seen keep their runtime, so that the second rank of a
// job is read faster than the first. The zero value is ready; all methods may be called concurrently.
type Reader struct {
	mu struct {
		sync.Mutex
		symbols map[file]symbols
	}
}

// file identifies a mapped file: a path means something else in a container.
type file struct {
	dev, ino uint64
	modified syscall.Timespec
}

// symbols are what is needed of a Python's symbol table, relative to where it is mapped; zero: not there.
type symbols struct {
	runtime, version uint64
	fixed            bool // mapped where it was linked
}

// mapsPage is what is read at a time of a process's list of mappings, and maxMapping bounds one of them.
const mapsPage, maxMapping = 1 << 10, 1 << 16

// maxRemembered bounds the table of Pythons: a host has a handful.
const maxRemembered = 64

// Read returns the stacks of a process. It needs the permission to trace it: the same user, and with Yama (Ubuntu) an
// ancestor of it.
func (r *Reader) Read(ctx context.Context, pid int) (*Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("stacks: %w", context.Cause(ctx))
	}
	failpoint.At("stacks.reader.open")
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%w: %w", ErrForbidden, err)
	case err != nil:
		return nil, fmt.Errorf("stacks: %w", err)
	}
	defer func() { _ = mem.Close() }()
	failpoint.At("stacks.reader.find")
	runtime, version, err := r.find(pid)
	if err != nil {
		return nil, err
	}
	failpoint.At("stacks.reader.walk")
	w, err := newWalker(mem, runtime, version)
	if err != nil {
		return nil, err
	}
	p := &Process{PID: pid, Version: versionString(w.version)}
	p.Threads, err = w.threads(ctx)
	if err != nil {
		return nil, err
	}
	failpoint.At("stacks.reader.threads")
	for i := range p.Threads {
		describe(pid, &p.Threads[i])
	}
	return p, nil
}

// find looks for the exported symbol _PyRuntime in the executable and in libpython, and returns the addresses of it and
// of Py_Version.
func (r *Reader) find(pid int) (runtime, version uint64, err error) {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("stacks: %w", err)
	}
	defer func() { _ = maps.Close() }()
	seen := map[string]bool{}
	// The executable comes first, and the kernel writes as many lines as are read: the hundreds of libraries after it cost nothing.
	sc := bufio.NewScanner(maps)
	sc.Buffer(make([]byte, mapsPage), maxMapping)
	for sc.Scan() {
		start, inode, path, ok := parseMapping(sc.Text())
		if !ok || seen[path] {
			continue
		}
		seen[path] = true
		s, err := r.symbolsOf(pid, path, inode)
		if err != nil || s.runtime == 0 {
			continue // this file is not a Python: an extension module, or removed by an upgrade
		}
		if s.fixed {
			start = 0
		}
		if s.version != 0 {
			s.version += start
		}
		return s.runtime + start, s.version, nil
	}
	if err := sc.Err(); err != nil {
		return 0, 0, fmt.Errorf("stacks: %w", err)
	}
	return 0, 0, fmt.Errorf("%w: process %d maps no file with _PyRuntime", ErrNotPython, pid)
}

// parseMapping reads a line of /proc/PID/maps: "start-end perms offset dev inode path". It takes the first mapping of a
// file that may be a Python.
func parseMapping(line string) (start uint64, inode, path string, ok bool) {
	if !strings.Contains(line, "python") {
		return 0, "", "", false // most have nothing to do with it
	}
	f := strings.Fields(line)
	if len(f) < 6 || strings.Trim(f[2], "0") != "" {
		return 0, "", "", false
	}
	path = strings.Join(f[5:], " ")
	if !strings.Contains(filepath.Base(path), "python") {
		return 0, "", "", false
	}
	from, _, _ := strings.Cut(f[0], "-")
	start, err := strconv.ParseUint(from, 16, 64)
	return start, f[4], path, err == nil
}

// symbolsOf reads the symbols of a mapped file. A process in a container has its path below its own root, one in a
// chroot of ours has it below ours; the inode number tells.
func (r *Reader) symbolsOf(pid int, path, inode string) (symbols, error) {
	for _, name := range []string{fmt.Sprintf("/proc/%d/root%s", pid, path), path} {
		info, err := os.Stat(name)
		if err != nil {
			continue
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || strconv.FormatUint(stat.Ino, 10) != inode {
			continue
		}
		id := file{stat.Dev, stat.Ino, stat.Mtim}
		failpoint.At("stacks.reader.remember")
		r.mu.Lock()
		s, known := r.mu.symbols[id]
		r.mu.Unlock()
		if known {
			return s, nil
		}
		if s, err = readSymbols(name); err != nil {
			return s, err
		}
		r.mu.Lock()
		if r.mu.symbols == nil || len(r.mu.symbols) >= maxRemembered {
			r.mu.symbols = map[file]symbols{}
		}
		r.mu.symbols[id] = s
		r.mu.Unlock()
		return s, nil
	}
	return symbols{}, os.ErrNotExist
}

func readSymbols(name string) (symbols, error) {
	f, err := elf.Open(name)
	if err != nil {
		return symbols{}, err
	}
	defer func() { _ = f.Close() }()
	s := symbols{fixed: f.Type == elf.ET_EXEC}
	table := f.SectionByType(elf.SHT_DYNSYM)
	if table == nil || int(table.Link) >= len(f.Sections) || f.Class != elf.ELFCLASS64 {
		return s, nil // it exports nothing
	}
	entries, err := table.Data()
	if err != nil {
		return s, err
	}
	names, err := f.Sections[table.Link].Data()
	if err != nil {
		return s, err
	}
	findSymbols(entries, names, f.ByteOrder, map[string]*uint64{"_PyRuntime": &s.runtime, "Py_Version": &s.version})
	return s, nil
}

// findSymbols finds the values of symbols that a file defines. A Python has thousands, of which debug/elf would make as many strings.
func findSymbols(entries, names []byte, order binary.ByteOrder, wanted map[string]*uint64) {
	for ; len(entries) >= elf.Sym64Size; entries = entries[elf.Sym64Size:] {
		name := uint64(order.Uint32(entries))
		undefined := order.Uint16(entries[6:]) == uint16(elf.SHN_UNDEF) // an extension module only refers to it
		if undefined || name >= uint64(len(names)) {
			continue
		}
		end := bytes.IndexByte(names[name:], 0)
		if end < 0 {
			continue
		}
		if value := wanted[string(names[name:][:end])]; value != nil {
			*value = order.Uint64(entries[8:])
		}
	}
}

// describe adds what the kernel knows about a thread.
func describe(pid int, t *Thread) {
	if t.ID == 0 {
		return
	}
	t.Name = task(pid, t.ID, "comm")
	stat := task(pid, t.ID, "stat")
	if f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]); len(f) > 0 {
		t.State = f[0]
	}
	if at := task(pid, t.ID, "wchan"); at != "0" {
		t.Kernel = at
	}
}

func task(pid, tid int, name string) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/%s", pid, tid, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
