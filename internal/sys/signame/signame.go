// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package signame reads lists of signals as torchrun's --signals-to-handle has them.
package signame

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// refused are signals that a launcher cannot catch, or needs for itself.
var refused = []string{"SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGCHLD", "SIGURG", "SIGPROF", "SIGPIPE"}

// Parse reads names with commas between them, with or without SIG in front.
func Parse(names string) ([]syscall.Signal, error) {
	var all []syscall.Signal
	for name := range strings.SplitSeq(names, ",") {
		name = strings.ToUpper(strings.TrimSpace(name))
		if name == "" {
			continue
		}
		if !strings.HasPrefix(name, "SIG") {
			name = "SIG" + name
		}
		s := number(name)
		if s == 0 || slices.Contains(refused, name) {
			return nil, fmt.Errorf("%s cannot be handled; SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and others can", name)
		}
		all = append(all, s)
	}
	return all, nil
}
