// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package portowner

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/cohort-dist/cohort/internal/sys/sockdiag"
)

// eachSocket calls visit for every TCP socket in one of the states, in the network namespace of a process; 0 is this process.
// Netlink answers for this process's namespace alone, so the sockets of another one are read from its table in /proc.
func eachSocket(pid int, states []sockdiag.State, visit func(sockdiag.Socket)) {
	if sameNamespace(pid) {
		var all []sockdiag.Socket // only a whole answer counts
		if err := sockdiag.Dump(states, func(s sockdiag.Socket) { all = append(all, s) }); err == nil {
			for _, s := range all {
				visit(s)
			}
			return
		}
	}
	sockdiag.Tables(pid, states, visit)
}

// namespace identifies the network namespace of a process, "" if that is not known.
func namespace(pid int) string {
	name, _ := os.Readlink(filepath.Join("/proc", procName(pid), "ns/net"))
	return name
}

// sameNamespace reports whether a process has the network namespace of this one, or may have it: what may not be asked of a
// process is not known.
func sameNamespace(pid int) bool {
	if pid == 0 {
		return true
	}
	there := namespace(pid)
	return there == "" || there == namespace(0)
}

func procName(pid int) string {
	if pid == 0 {
		return "self"
	}
	return strconv.Itoa(pid)
}
