// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestMembersOnNodes: three launchers have two workers each, of which four are members of one group. A node that is killed, or whose
// network is gone, takes its members out, and spares of the other nodes come in. No worker is restarted.
func TestMembersOnNodes(t *testing.T) {
	t.Parallel()
	program := testkit.BuildProgram(t, "examples/reconfigure")
	for _, how := range []string{"kill", "cut"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			l := newLAN(t, 3)
			var nodes []*command
			for i := range 3 {
				nodes = append(nodes, l.start(i+1, "run", "--nnodes", "3", "--rdzv-endpoint", "10.77.0.1:29500",
					"--nproc-per-node", "2", "--members", "4",
					"--evidence", "-", program, "-steps", "120"))
			}
			said := func(text string) (n int) {
				for _, c := range nodes {
					n += strings.Count(c.String(), text)
				}
				return n
			}
			for end := time.Now().Add(90 * time.Second); said("step 20 loss") < 4; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("they do not train:\n%s\n%s\n%s", nodes[0], nodes[1], nodes[2])
				}
			}
			victim := 1 // machine 1 has the store and the coordinator
			if strings.Contains(nodes[2].String(), "step 20 loss") {
				victim = 2
			}
			if how == "cut" {
				l.cut(victim + 1)
			} else {
				_ = nodes[victim].cmd.Process.Signal(syscall.SIGKILL)
			}
			numbers := map[string]int{}
			for i, c := range nodes {
				if i == victim {
					continue
				}
				if code := c.ends(); code != 0 || strings.Count(c.String(), "done at step 120") != 2 {
					t.Errorf("machine %d: exit code %d\n%s", i+1, code, c)
				}
				for _, m := range regexp.MustCompile(`go member (\d+) \(process (\d+)\)`).FindAllStringSubmatch(c.String(), -1) {
					numbers[m[1]+" in "+m[2]] = i
				}
			}
			if len(numbers) != 4 {
				t.Errorf("the members were %v", numbers)
			}
			if how == "cut" {
				return // its workers find out in their own time
			}
			if code := nodes[victim].ends(); code == 0 {
				t.Errorf("the node that was killed succeeds: %s", fmt.Sprint(nodes[victim]))
			}
		})
	}
}
