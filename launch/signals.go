// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"strings"
)

// signalNumbers are the signals that may be named; their numbers are the same on Linux and macOS but for the two users'.
var signalNumbers = map[string]int{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGABRT": 6, "SIGALRM": 14, "SIGTERM": 15, "SIGUSR1": sigUSR1, "SIGUSR2": sigUSR2,
	"SIGXCPU": 24, "SIGCONT": sigCONT, "SIGTSTP": sigTSTP,
}

// parseSignals reads torchrun's --signals-to-handle.
func parseSignals(names string) (map[int]bool, error) {
	ending := map[int]bool{}
	for name := range strings.SplitSeq(names, ",") {
		name = strings.ToUpper(strings.TrimSpace(name))
		if name == "" {
			continue
		}
		if !strings.HasPrefix(name, "SIG") {
			name = "SIG" + name
		}
		n, known := signalNumbers[name]
		if !known {
			return nil, refuse("%s cannot be handled; known are SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and a few more", name)
		}
		ending[n] = true
	}
	return ending, nil
}
