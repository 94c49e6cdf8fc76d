// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// named runs a command on a machine that has a name of its own, which leads where /etc/hosts says.
func (l *lan) named(i int, name, hosts string, args ...string) *command {
	l.t.Helper()
	dir := l.t.TempDir()
	file, servers := filepath.Join(dir, "hosts"), filepath.Join(dir, "resolv.conf")
	for path, text := range map[string]string{file: hosts, servers: "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			l.t.Fatal(err)
		}
	}
	script := fmt.Sprintf(`hostname %s && mount --bind %s /etc/hosts && mount --bind %s /etc/resolv.conf && exec "$@"`, name, file, servers)
	return l.enter(i, append([]string{"unshare", "--uts", "--mount", "sh", "-c", script, "sh"}, args...)...)
}

// TestNameOfTheHost: a node whose name does not lead to an address that others reach has its workers use the interface that leads to the
// endpoint, and says so; one with a right name, or whose user has named an interface, does not.
func TestNameOfTheHost(t *testing.T) {
	t.Parallel()
	l := newLAN(t, 5)
	path, err := exec.LookPath("cohort")
	if err != nil {
		t.Fatal(err)
	}
	if out, failed := exec.Command("unshare", "--uts", "--mount", "true").CombinedOutput(); failed != nil {
		t.Skipf("this machine cannot make namespaces: %v %s", failed, out)
	}
	const chosen = ": the workers get GLOO_SOCKET_IFNAME=eth0 and TP_SOCKET_IFNAME=eth0, so that other nodes can reach them"
	cases := []struct {
		hosts, given string
		says, gets   string
	}{
		{"127.0.0.1 localhost\n127.0.1.1 machine1\n", "", "the host name machine1 leads to 127.0.1.1" + chosen, "eth0,eth0"},
		{"127.0.0.1 localhost\n", "", "the host name machine2 has no address" + chosen, "eth0,eth0"},
		{
			"192.0.2.1 machine3\n", "", "the host name machine3 leads to 192.0.2.1, which is not an address of this host" + chosen,
			"eth0,eth0",
		},
		{"10.77.0.4 machine4\n127.0.0.1 localhost\n", "", "", ","},
		{"127.0.1.1 machine5\n", "GLOO_SOCKET_IFNAME=eth0", "", "eth0,"},
	}
	var nodes []*command
	for i, c := range cases {
		args := []string{
			path, "run", "--nnodes", "5", "--rdzv-id", "names", "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29400",
			"--evidence", "-", "sh", "-c", `echo "gets=$$GLOO_SOCKET_IFNAME,$$TP_SOCKET_IFNAME."`,
		}
		if c.given != "" {
			args = append([]string{"env", c.given}, args...)
		}
		nodes = append(nodes, l.named(i+1, fmt.Sprint("machine", i+1), c.hosts, args...))
	}
	for i, c := range cases {
		if code := nodes[i].ends(); code != 0 || !strings.Contains(nodes[i].String(), "gets="+c.gets+".") {
			t.Errorf("machine %d: exit code %d, want %s:\n%s", i+1, code, c.gets, nodes[i])
		}
		if n := strings.Count(nodes[i].String(), "cohort: "+c.says); c.says != "" && n != 1 ||
			c.says == "" && strings.Contains(nodes[i].String(), "the workers get") {
			t.Errorf("machine %d says %d times that %q:\n%s", i+1, n, c.says, nodes[i])
		}
	}
}
