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
)

const (
	stateListen = "0A"
	maxCommand  = 80
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
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return Owner{}, false
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil {
			continue
		}
		inode, found := strings.CutPrefix(target, "socket:[")
		if !found || !inodes[strings.TrimSuffix(inode, "]")] {
			continue
		}
		process, _, _ := strings.Cut(strings.TrimPrefix(link, "/proc/"), "/")
		pid, err := strconv.Atoi(process)
		if err != nil {
			continue
		}
		return Owner{PID: pid, Command: command(process)}, true
	}
	return Owner{}, false
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
