// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package postmortem

import (
	"fmt"
	"math/bits"
	"net/netip"
	"regexp"
	"strconv"
)

// refusedAt is how gloo tells of a rank that it cannot connect to: "[./gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:905: Connection
// refused", and from PyTorch 2.6 on "timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:25991$0".
var refusedAt = regexp.MustCompile(`gloo/transport/tcp/.*\b(?:connect |remote=)\[([0-9a-fA-F.:]+)\]:\d+`)

// wrongAddress returns the loopback address at which a rank of a job on several nodes has looked for another, "" if that is not why it
// failed. On one node such an address is right, and the rank there has ended.
func wrongAddress(exception string, nodes int) string {
	m := refusedAt.FindStringSubmatch(exception)
	if m == nil || nodes < 2 {
		return ""
	}
	if ip, err := netip.ParseAddr(m[1]); err != nil || !ip.Unmap().IsLoopback() {
		return ""
	}
	return m[1]
}

const nameAdvice = "the host name of a node leads to this address (look at /etc/hosts): set GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME on " +
	"all nodes to the interface that leads to the others, which \"ip route get ADDRESS\" names; cohort run sets them where neither is set"

// glooPort is an address in a message of gloo.
var glooPort = regexp.MustCompile(`(gloo/transport/tcp/\S+\.cc:\d+\].*\[[0-9a-fA-F.:]+\]:)(\d+)(?:\$\d+)?`)

// withPorts adds what gloo means to the ports that it prints: it writes them with their two bytes exchanged.
func withPorts(text string) string {
	return glooPort.ReplaceAllStringFunc(text, func(found string) string {
		m := glooPort.FindStringSubmatch(found)
		port, err := strconv.ParseUint(m[2], 10, 16)
		if err != nil {
			return found
		}
		return fmt.Sprintf("%s (port %d)", found, bits.ReverseBytes16(uint16(port)))
	})
}
