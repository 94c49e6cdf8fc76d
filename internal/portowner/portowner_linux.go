// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package portowner

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	stateListen = "0A"
	maxCommand  = 80
	// patience bounds the search.
	patience = time.Second
)

// Find returns the process that listens on port. It reads /proc, so it sees only processes that this user may look
// into; ok is false when it cannot tell.
func Find(port int) (Owner, bool) {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		listeners(table, port, inodes)
	}
	if len(inodes) == 0 {
		return Owner{}, false
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return Owner{}, false
	}
	// Ourselves first: two masters of one process on one port are the most frequent case.
	pids := []int{os.Getpid()}
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && pid != pids[0] {
			pids = append(pids, pid)
		}
	}
	giveUp := time.Now().Add(patience)
	for _, pid := range pids {
		process := strconv.Itoa(pid)
		if holds(process, inodes, giveUp) {
			return Owner{PID: pid, Command: command(process)}, true
		}
	}
	return Owner{}, false
}

// holds reports whether a process has one of the sockets. A machine with very many open files is not searched to the end:
// the name is a help in an error, which must not come late for it.
func holds(process string, inodes map[string]bool, giveUp time.Time) bool {
	folder := filepath.Join("/proc", process, "fd")
	files, err := os.ReadDir(folder)
	if err != nil {
		return false
	}
	for _, file := range files {
		if time.Now().After(giveUp) {
			return false
		}
		target, err := os.Readlink(filepath.Join(folder, file.Name()))
		if err != nil {
			continue
		}
		if inode, found := strings.CutPrefix(target, "socket:["); found && inodes[strings.TrimSuffix(inode, "]")] {
			return true
		}
	}
	return false
}

// listeners adds the inodes of the sockets in table that listen on port.
func listeners(table string, port int, inodes map[string]bool) {
	file, err := os.Open(table) //nolint:gosec // one of two fixed names
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		// sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != stateListen {
			continue
		}
		_, hexPort, _ := strings.Cut(fields[1], ":")
		if n, err := strconv.ParseUint(hexPort, 16, 16); err == nil && int(n) == port {
			inodes[fields[9]] = true
		}
	}
}

// command returns the start of a process's command line.
func command(process string) string {
	line, err := os.ReadFile(filepath.Join("/proc", process, "cmdline")) //nolint:gosec // process is a number
	if err != nil {
		return ""
	}
	text := strings.TrimSpace(string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
	if len(text) > maxCommand {
		text = text[:maxCommand] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}
