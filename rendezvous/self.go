// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"os"
	"strings"
)

// self returns the identity of this process.
func self() identity {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown-host"
	}
	return identity{Host: strings.ReplaceAll(host, tagMark, "-"), PID: os.Getpid(), Tag: processTag()}
}

// processTag tells this process from others with the same host name and process id: by its process-id namespace and the
// time it started. Where /proc does not say, it is empty.
func processTag() string {
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return ""
	}
	// The second field is the command in parentheses and may hold spaces; the start time is the 22nd.
	_, after, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(after)
	const startTime = 22 - 3
	if len(fields) <= startTime {
		return ""
	}
	namespace = strings.TrimSuffix(strings.TrimPrefix(namespace, "pid:["), "]")
	return namespace + "." + fields[startTime]
}
