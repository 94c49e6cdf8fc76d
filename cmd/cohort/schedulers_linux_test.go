// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// runs runs a program and returns what it prints and its exit code.
func runs(t *testing.T, name string, args ...string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var all bytes.Buffer
	cmd.Stdout, cmd.Stderr = &all, &all
	if err := cmd.Run(); ctx.Err() != nil {
		t.Fatalf("%s does not end: %v\n%s", name, err, all.String())
	}
	return all.String(), cmd.ProcessState.ExitCode()
}

// TestUnderOpenMPI: a launcher that mpirun has started takes its place from mpirun; several on one host are refused.
func TestUnderOpenMPI(t *testing.T) {
	t.Parallel()
	mpirun, err := exec.LookPath("mpirun")
	if err != nil {
		t.Skipf("this machine cannot run mpirun: %v", err)
	}
	if text, failed := runs(t, mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2", "true"); failed != 0 {
		t.Skipf("this machine cannot run mpirun: exit code %d\n%s", failed, text)
	}
	out, code := runs(t, mpirun, "--allow-run-as-root", "-n", "1", "--map-by", "ppr:1:node", "cohort", "run", "--nproc-per-node",
		"2", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
	if code != 0 || !strings.Contains(out, "rank 0 of 2") || !strings.Contains(out, "rank 1 of 2") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	out, code = runs(t, mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2", "cohort", "run", "--nproc-per-node", "2", "true")
	if code != 2 || !strings.Contains(out, "mpirun has started 2 launchers on this host: start one on each (mpirun --map-by ppr:1:node)") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

// slurmCluster starts a Slurm of two nodes, both on this machine, and has srun use it.
func slurmCluster(t *testing.T) {
	t.Helper()
	for _, name := range []string{"munged", "slurmctld", "slurmd", "srun", "sinfo"} {
		if _, err := exec.LookPath(name); err != nil || os.Getuid() != 0 {
			t.Skipf("this machine cannot run Slurm: %v, user %d", err, os.Getuid())
		}
	}
	dir, err := os.MkdirTemp("/tmp", "slurm") //nolint:usetesting // the names of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var ports [3]int
	for i := range ports {
		port, release, taken := testkit.TakePort()
		if taken != nil {
			t.Fatal(taken)
		}
		t.Cleanup(release)
		ports[i] = port
	}
	key := make([]byte, 1024)
	_, _ = rand.Read(key)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	host, _, _ = strings.Cut(host, ".")
	config := fmt.Sprintf(`ClusterName=test
SlurmctldHost=%[1]s(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=%[2]s/munge
SlurmctldPort=%[3]d
StateSaveLocation=%[2]s/state
SlurmdSpoolDir=%[2]s/spool-%%n
SlurmctldPidFile=%[2]s/slurmctld.pid
SlurmdPidFile=%[2]s/slurmd-%%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/linear
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeAddr=127.0.0.1 NodeHostname=%[1]s Port=%[4]d CPUs=1 State=UNKNOWN
NodeName=n2 NodeAddr=127.0.0.1 NodeHostname=%[1]s Port=%[5]d CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
`, host, dir, ports[0], ports[1], ports[2])
	if err := os.WriteFile(filepath.Join(dir, "slurm.conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "key"), key, 0o400); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLURM_CONF", filepath.Join(dir, "slurm.conf"))
	for i, args := range [][]string{
		{
			"munged", "-F", "--force", "--key-file=" + dir + "/key", "--socket=" + dir + "/munge", "--pid-file=" + dir + "/munge.pid",
			"--log-file=" + dir + "/munge.log", "--seed-file=" + dir + "/seed",
		},
		{"slurmctld", "-D", "-c"},
		{"slurmd", "-D", "-N", "n1"},
		{"slurmd", "-D", "-N", "n2"},
	} {
		cmd := exec.Command(args[0], args[1:]...)
		log, err := os.Create(filepath.Join(dir, fmt.Sprint("out", i)))
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			_ = log.Close()
		})
	}
	out := ""
	for limit := time.Now().Add(60 * time.Second); time.Now().Before(limit); time.Sleep(200 * time.Millisecond) {
		if out, _ = runs(t, "sinfo", "-h", "-o", "%D %t"); strings.TrimSpace(out) == "2 idle" {
			if text, failed := runs(t, "srun", "-N2", "--ntasks-per-node=1", "true"); failed != 0 {
				t.Skipf("this machine cannot run srun: exit code %d\n%s", failed, text)
			}
			return
		}
	}
	t.Skipf("this machine cannot run Slurm: its nodes do not come up: %s", out)
}

// TestUnderSlurm: launchers that srun has started, one on each node, take their places from Slurm.
func TestUnderSlurm(t *testing.T) { //nolint:paralleltest // it sets a variable
	slurmCluster(t)
	port, release, err := testkit.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	out, code := runs(t, "srun", "-N2", "--ntasks-per-node=1", "cohort", "run", "--nproc-per-node", "2", "--rdzv-endpoint",
		fmt.Sprint("127.0.0.1:", port), "--rdzv-backend", "c10d",
		"sh", "-c", "echo rank $RANK of $WORLD_SIZE, node $GROUP_RANK of $GROUP_WORLD_SIZE, node $SLURM_NODEID, $TORCHELASTIC_RUN_ID")
	for _, want := range []string{
		"rank 0 of 4, node 0 of 2, node 0, 2.0\n", "rank 1 of 4, node 0 of 2, node 0", "rank 2 of 4, node 1 of 2, node 1",
		"rank 3 of 4, node 1 of 2, node 1",
		"cohort: Slurm: 2 nodes, this is number 1; they meet at 127.0.0.1:",
	} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d, no %q in:\n%s", code, want, out)
		}
	}
	// Where they meet, unless it is said, is the first node.
	token, _ := newToken(t)
	t.Setenv("COHORT_TOKEN_FILE", token)
	if out, code = runs(t, "srun", "-N2", "--ntasks-per-node=1", "cohort", "run", "--dry-run", "train.py"); code != 0 ||
		!strings.Contains(out, "the rendezvous at n1:29400, for node 1 of 2") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	// One launcher for each rank is one too many.
	if out, code = runs(t, "srun", "-N1", "-n2", "-O", "cohort", "run", "true"); code != 2 ||
		!strings.Contains(out, "srun has started 2 launchers on 1 nodes: start one on each (srun --ntasks-per-node=1)") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
