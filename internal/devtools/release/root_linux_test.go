// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// inRoot makes a command run with a folder as its file system, if this process may.
func inRoot(cmd *exec.Cmd, root string) bool {
	if os.Getuid() != 0 {
		return false
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	cmd.Path = "/" + strings.TrimPrefix(filepath.ToSlash(cmd.Path), filepath.ToSlash(root)+"/")
	cmd.Dir = "/"
	return true
}
