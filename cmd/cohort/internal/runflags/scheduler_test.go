// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package runflags

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/launch"
)

func TestSchedulers(t *testing.T) {
	t.Parallel()
	slurm := map[string]string{
		"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "1",
		"SLURM_STEP_NODELIST": "gnode[10,20-22]", "SLURM_GPUS_ON_NODE": "4",
	}
	with := func(env map[string]string, name, value string) map[string]string {
		out := map[string]string{name: value}
		for k, v := range env {
			if k != name {
				out[k] = v
			}
		}
		return out
	}
	mpi := map[string]string{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
	// of the step of mpirun's daemon
	both := map[string]string{"SLURM_JOB_ID": "77", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0"}
	maps.Copy(both, mpi)
	for name, c := range map[string]struct {
		args string
		env  map[string]string
		// nodes, node, endpoint, workers, id, host
		nodes, node int
		endpoint    string
		workers     int
		id          string
		host        launch.Hosting
		note        string
	}{
		"slurm":          {"t.py", slurm, 2, 1, "gnode10:29400", 4, "77.0", 0, "Slurm: 2 nodes, this is number 1; they meet at gnode10"},
		"slurm, first":   {"t.py", with(slurm, "SLURM_NODEID", "0"), 2, 0, "gnode10:29400", 4, "77.0", launch.HostAlways, "Slurm"},
		"options win":    {"--nnodes 1 --nproc-per-node 3 t.py", slurm, 1, -1, "", 3, "", 0, ""},
		"standalone":     {"--standalone t.py", slurm, 1, -1, "", 1, "", 0, ""},
		"endpoint given": {"--rdzv-endpoint a:1 --rdzv-backend c10d t.py", slurm, 2, 1, "a:1", 4, "77.0", 0, "they meet at a:1"},
		"slurm, one node": {
			"t.py", with(slurm, "SLURM_STEP_NUM_NODES", "1"), 0, 0, "", 0, "", 0,
			"error: srun has started 2 launchers on 1 nodes",
		},
		"a batch script": {"t.py", map[string]string{
			"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NNODES": "2",
			"SLURM_NODEID": "0",
		}, 1, -1, "", 1, "", 0, ""},
		"skypilot": {
			"t.py",
			map[string]string{
				"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2",
				"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n", "SKYPILOT_NUM_GPUS_PER_NODE": "8", "SKYPILOT_TASK_ID": "sky-1",
			},
			2, 1,
			"10.0.0.1:29400", 8, "sky-1", 0, "SkyPilot",
		},
		"mpi":           {"--rdzv-endpoint a:1 --rdzv-backend c10d t.py", mpi, 2, 1, "a:1", 1, "", 0, "Open MPI"},
		"mpi, no place": {"t.py", mpi, 0, 0, "", 0, "", 0, "error: mpirun does not set an address where the nodes can meet"},
		"mpi, all on one": {
			"t.py", with(mpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "2"), 0, 0, "", 0, "", 0,
			"error: mpirun has started 2 launchers on this host",
		},
		"slurm, odd node": {"t.py", with(slurm, "SLURM_NODEID", "x"), 0, 0, "", 0, "", 0, "error: SLURM_NODEID x: it must be"},
		"sky, odd nodes": {"t.py", map[string]string{
			"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "x",
			"SKYPILOT_NODE_IPS": "10.0.0.1",
		}, 0, 0, "", 0, "", 0, "error: SKYPILOT_NUM_NODES x"},
		"mpi, odd rank": {
			"--rdzv-endpoint a:1 --rdzv-backend c10d t.py", with(mpi, "OMPI_COMM_WORLD_RANK", "x"), 0, 0, "", 0,
			"", 0, "error: OMPI_COMM_WORLD_RANK x: it must be",
		},
		"pet, both": {
			"t.py",
			map[string]string{
				"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "a:29400",
				"PET_RDZV_BACKEND": "c10d", "PET_MASTER_ADDR": "b",
			},
			2, -1, "a:29400", 1, "", 0,
			"PET_ variables: 2 nodes; they meet at a:29400.",
		},
		"slurm, both": {
			"--rdzv-endpoint a:1 --rdzv-backend c10d --master-addr b t.py", slurm, 2, 1, "a:1", 4, "77.0", 0,
			"this is number 1; they meet at a:1.",
		},
		"an odd index": {
			"--nnodes 3 --master-addr a t.py",
			map[string]string{"JOB_COMPLETION_INDEX": "x"},
			0, 0, "", 0, "", 0,
			"error: JOB_COMPLETION_INDEX x: it must be",
		},
		"kubeflow": {
			"t.py",
			map[string]string{
				"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "4",
				"PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29500",
			},
			2, 1, "job-node-0-0.job:29500", 4, "",
			launch.HostNever, "PET_ variables: 2 nodes, this is number 1; they meet at job-node-0-0.job",
		},
		"kubeflow, first": {
			"t.py",
			map[string]string{
				"PET_NNODES": "2", "PET_NODE_RANK": "0",
				"PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29500",
			},
			2, 0, "job-node-0-0.job:29500", 1, "",
			launch.HostAlways, "",
		},
		"an indexed job": {
			"--nnodes 3 --master-addr a t.py",
			map[string]string{"JOB_COMPLETION_INDEX": "2"},
			3, 2, "a:29500", 1,
			"", launch.HostNever, "Kubernetes: this is node 2 of 3 (JOB_COMPLETION_INDEX)",
		},
		"an index of many": {"--nnodes 1 t.py", map[string]string{"JOB_COMPLETION_INDEX": "2"}, 1, -1, "", 1, "", 0, ""},
		"slurm's GPUs": {
			"t.py", with(slurm, "SLURM_NODEID", "0"), 2, 0, "gnode10:29400", 4, "77.0", launch.HostAlways,
			"4 workers: one for each GPU (SLURM_GPUS_ON_NODE)",
		},
		"GPUs of one node": {"t.py", map[string]string{
			"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1",
			"SLURM_NODEID": "0", "SLURM_GPUS_ON_NODE": "2",
		}, 1, -1, "", 2, "", 0, "2 workers: one for each GPU (SLURM_GPUS_ON_NODE)"},
		"slurm, two parts": {
			"t.py", with(slurm, "SLURM_NODEID", "2"), 0, 0, "", 0, "", 0,
			"error: SLURM_NODEID is 2, but SLURM_STEP_NUM_NODES 2, as in a heterogeneous step: give --nnodes, --node-rank and " +
				"--rdzv-endpoint",
		},
		"slurm, no list": {
			"t.py", with(slurm, "SLURM_STEP_NODELIST", "a[1"), 0, 0, "", 0, "", 0,
			"error: SLURM_STEP_NUM_NODES: the nodes need a place to meet: --rdzv-endpoint",
		},
		"slurm, uneven": {
			"t.py", with(slurm, "SLURM_STEP_NUM_TASKS", "7"), 0, 0, "", 0, "", 0,
			"error: srun has started 7 launchers on 2 nodes: start one on each (srun --ntasks-per-node=1)",
		},
		"mpi over slurm": {"--rdzv-endpoint a:1 --rdzv-backend c10d t.py", both, 2, 1, "a:1", 1, "", 0, "Open MPI"},
		"mpi, no local":  {"--rdzv-endpoint a:1 t.py", with(mpi, "OMPI_COMM_WORLD_LOCAL_SIZE", ""), 2, 1, "a:1", 1, "", 0, "Open MPI"},
		"sky, one node": {
			"t.py",
			map[string]string{
				"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1",
				"SKYPILOT_NODE_IPS": "10.0.0.1", "SKYPILOT_NUM_GPUS_PER_NODE": "8",
			},
			1, -1, "", 8, "", 0,
			"8 workers: one for each GPU (SKYPILOT_NUM_GPUS_PER_NODE)",
		},
		"torchrun's plain": {
			"--nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 7000 t.py", nil, 2, 0, "10.0.0.1:7000",
			1, "", launch.HostAlways, "",
		},
	} {
		o, err := Parse(t.Context(), strings.Fields(c.args), system(c.env))
		if want, fails := strings.CutPrefix(c.note, "error: "); fails {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want %q", name, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		node := -1
		if o.Nodes.Rank != nil {
			node = *o.Nodes.Rank
		}
		if o.Nodes.Max != c.nodes || node != c.node || o.Nodes.Endpoint != c.endpoint || o.Workers != c.workers ||
			o.RunID != c.id || o.Nodes.Host != c.host {
			t.Errorf("%s: %d nodes, number %d, at %q, %d workers, id %q, host %v", name, o.Nodes.Max, node, o.Nodes.Endpoint,
				o.Workers, o.RunID, o.Nodes.Host)
		}
		if !strings.Contains(strings.Join(o.Notes, ".\n")+".", c.note) {
			t.Errorf("%s: notes %q, want %q", name, o.Notes, c.note)
		}
	}
}

// TestNoPlace: where nothing says where the nodes meet, the note does not either.
func TestNoPlace(t *testing.T) {
	t.Parallel()
	var o Options
	o.numbered(variables{
		v: values{"nnodes": "2"}, from: sources{"nnodes": "PET_NNODES"},
		lookup: func(string) (string, bool) { return "", false },
	})
	if want := []string{"PET_ variables: 2 nodes"}; !slices.Equal(o.Notes, want) {
		t.Errorf("notes %q, want %q", o.Notes, want)
	}
}

func TestFirstHost(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"a": "a", "a,b": "a", "gnode[10,20-22]": "gnode10", "gnode[010-012],x1": "gnode010", "x1,gnode[1-2]": "x1",
		"a[1-2]-ib": "a1-ib", "": "", "a[1": "", "rack[1-2]n[3-4],x": "rack1n3", "n[1,3]a[5-6],b": "n1a5",
	} {
		if got := firstHost(list); got != want {
			t.Errorf("first host of %q is %q, want %q", list, got, want)
		}
	}
}
