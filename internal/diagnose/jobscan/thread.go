// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
)

// polled returns the only file that a thread waits for in poll or ppoll. Their arguments are the address of a table and its length.
func polled(dir string, table uint64, call []string) (uint64, error) {
	if len(call) < 3 || call[2] != "0x1" || table > math.MaxInt64 {
		return 0, errors.New("not one file")
	}
	memory, err := os.Open(filepath.Join(dir, "mem")) //nolint:gosec // a file of the kernel
	if err != nil {
		return 0, err
	}
	defer func() { _ = memory.Close() }()
	var entry [4]byte
	if _, err := memory.ReadAt(entry[:], int64(table)); err != nil {
		return 0, err
	}
	return uint64(binary.NativeEndian.Uint32(entry[:])), nil
}

// selected returns the only file that a thread waits for in select. Its arguments are how many files its sets of bits are for, and those.
func selected(dir string, files uint64, call []string) (uint64, error) {
	const most = 1024
	if len(call) < 5 || files == 0 || files > most {
		return 0, errors.New("no files")
	}
	memory, err := os.Open(filepath.Join(dir, "mem")) //nolint:gosec // a file of the kernel
	if err != nil {
		return 0, err
	}
	defer func() { _ = memory.Close() }()
	var found []uint64
	for _, set := range call[2:5] { // to be read, to be written, and with something exceptional
		at, err := strconv.ParseUint(strings.TrimPrefix(set, "0x"), 16, 63)
		if err != nil {
			return 0, err
		}
		if at == 0 {
			continue
		}
		bits := make([]byte, (files+7)/8)
		if _, err := memory.ReadAt(bits, int64(at)); err != nil {
			return 0, err
		}
		for n := range files {
			if bits[n/8]>>(n%8)&1 == 1 && !slices.Contains(found, n) {
				found = append(found, n)
			}
		}
	}
	if len(found) != 1 {
		return 0, errors.New("not one file")
	}
	return found[0], nil
}

// object returns what a thread reads, writes or connects to, if it sleeps in a call of the kernel whose first argument
// is an open file, or the only one that it polls: the other end of a connection, or the name of a file. kernel is the
// function of the kernel that it sleeps in; the caller must know that it is in such a call. sockets are those of the process.
func object(sockets *portowner.Sockets, pid, tid int, kernel string) string {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	call, err := os.ReadFile(filepath.Join(dir, "task", strconv.Itoa(tid), "syscall")) //nolint:gosec // a file of the kernel
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(call)) // the number of the call, and its arguments in hex
	if len(fields) < 2 {
		return ""
	}
	fd, err := strconv.ParseUint(strings.TrimPrefix(fields[1], "0x"), 16, 64)
	switch {
	case err != nil:
	case fd > math.MaxInt32:
		fd, err = polled(dir, fd, fields)
	case strings.HasPrefix(kernel, "poll_schedule_timeout"):
		fd, err = selected(dir, fd, fields)
	}
	if err != nil {
		return ""
	}
	target, err := os.Readlink(filepath.Join(dir, "fd", strconv.FormatUint(fd, 10)))
	if err != nil {
		return ""
	}
	if inode, found := strings.CutPrefix(target, "socket:["); found {
		number, _ := strconv.ParseUint(strings.TrimSuffix(inode, "]"), 10, 32)
		if addr, found := sockets.Remote(pid, uint32(number)); found {
			return addr.String()
		}
		return ""
	}
	if strings.HasPrefix(target, "/") {
		return fmt.Sprintf("%.200s", target)
	}
	return ""
}

// pipeOf returns the pipe that a thread reads from, as the kernel names it; "" if it reads from none.
func pipeOf(pid int, t *stacks.Thread) string {
	if t.Kernel != "pipe_read" && t.Kernel != "anon_pipe_read" {
		return ""
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	call, err := os.ReadFile(filepath.Join(dir, "task", strconv.Itoa(t.ID), "syscall")) //nolint:gosec // a file of the kernel
	fields := strings.Fields(string(call))                                              // the number of the call, and its arguments in hex
	if err != nil || len(fields) < 2 {
		return ""
	}
	fd, err := strconv.ParseUint(strings.TrimPrefix(fields[1], "0x"), 16, 31)
	if err != nil {
		return ""
	}
	target, _ := os.Readlink(filepath.Join(dir, "fd", strconv.FormatUint(fd, 10)))
	if !strings.HasPrefix(target, "pipe:") {
		return ""
	}
	return target
}

// writing returns those of the children that could write to a pipe.
func writing(children []verdict.Child, pipe string) []verdict.Child {
	return slices.DeleteFunc(children, func(c verdict.Child) bool { return !writes(c.PID, pipe) })
}

// writes reports whether a process has the end of a pipe that is written to.
func writes(pid int, pipe string) bool {
	const most = 1024
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	files, _ := os.ReadDir(filepath.Join(dir, "fd"))
	for _, f := range files[:min(len(files), most)] {
		target, _ := os.Readlink(filepath.Join(dir, "fd", f.Name()))
		if target != pipe {
			continue
		}
		info, _ := os.ReadFile(filepath.Join(dir, "fdinfo", f.Name())) //nolint:gosec // a file of the kernel
		for line := range strings.Lines(string(info)) {
			if flags, found := strings.CutPrefix(line, "flags:"); found {
				n, err := strconv.ParseUint(strings.TrimSpace(flags), 8, 64)
				if err == nil && n&3 != 0 { // not O_RDONLY
					return true
				}
			}
		}
	}
	return false
}

// use is how long a thread has wanted a processor until a moment.
type use struct {
	tid    int
	wanted time.Duration // it ran, or waited for its turn; 0: not known
	at     time.Time
}

// usesOf returns the use of the main thread of each process.
func usesOf(all []reading) []use {
	uses := make([]use, len(all))
	for i, r := range all {
		if r.process != nil && r.process.Main() != nil {
			uses[i] = useOf(r.process.PID, r.process.Main().ID)
		}
	}
	return uses
}

func useOf(pid, tid int) use {
	u := use{tid: tid, at: time.Now()}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/schedstat", pid, tid))
	if err != nil {
		return u
	}
	var ran, waited time.Duration
	if _, err := fmt.Sscan(string(b), &ran, &waited); err == nil { // nanoseconds
		u.wanted = ran + waited
	}
	return u
}

// minApart is the time between two readings that is too short to tell by.
const minApart = 20 * time.Millisecond

// slept reports whether a thread slept for most of the time between two readings. Its state at one moment does not tell: a thread
// that looks for a file every few milliseconds is seen running now and then.
func slept(before, after use) bool {
	apart := after.at.Sub(before.at)
	return before.wanted > 0 && after.wanted > 0 && before.tid == after.tid && apart >= minApart && after.wanted-before.wanted < apart/4
}
