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
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/portowner"
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

// object returns what a thread reads, writes or connects to, if it sleeps in a call of the kernel whose first argument is an
// open file, or the only one that it polls: the other end of a connection, or the name of a file. The caller must know that it is in such a call.
func object(pid, tid int) string {
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
	if err == nil && fd > math.MaxInt32 {
		fd, err = polled(dir, fd, fields)
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
