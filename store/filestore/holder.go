// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// heldError is the end of a wait for the lock: another process had it all the time.
type heldError struct {
	error
	id fileID
}

func (e *heldError) Unwrap() error { return e.error }

// who names the process that holds the lock, as far as the system knows.
func (e *heldError) who() string {
	locks, _ := os.ReadFile("/proc/locks") // none on other systems
	pid := holderOf(string(locks), e.id)
	if pid <= 0 { // or a process that cannot be seen from here
		return "another process holds the lock of the file"
	}
	text := fmt.Sprintf("process %d holds the lock of the file", pid)
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // "7 (python3) T 1 ..."
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open || len(stat) < end+3 {
		return text
	}
	text = fmt.Sprintf("process %d %s holds the lock of the file", pid, stat[open:end+1])
	if state := stat[end+2]; state == 'T' || state == 't' {
		text += " and is stopped"
	}
	return text
}

// holderOf finds the process that holds a lock on a file in the text of /proc/locks, 0 for none:
//
//	1: FLOCK  ADVISORY  WRITE 7 08:01:4711 0 EOF
func holderOf(locks string, id fileID) int {
	for line := range strings.Lines(locks) {
		var number, kind, strength, access string
		var pid int
		var major, minor uint32
		var inode uint64
		_, err := fmt.Sscanf(line, "%s %s %s %s %d %x:%x:%d", &number, &kind, &strength, &access, &pid, &major, &minor, &inode)
		if err == nil && kind == "FLOCK" && inode == id.inode && device(major, minor) == id.device { // one that waits has "->" for its kind
			return pid
		}
	}
	return 0
}
