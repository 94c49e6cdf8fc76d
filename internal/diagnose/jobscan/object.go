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

// object returns what a thread reads, writes or connects to, if it sleeps in a call of the kernel whose first argument is an
// open file, or the only one that it polls: the other end of a connection, or the name of a file. kernel is the function of the kernel that it
// sleeps in; the caller must know that it is in such a call.
func object(pid, tid int, kernel string) string {
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
		if addr, found := portowner.Remote(pid, strings.TrimSuffix(inode, "]")); found {
			return addr.String()
		}
		return ""
	}
	if strings.HasPrefix(target, "/") {
		return fmt.Sprintf("%.200s", target)
	}
	return ""
}
