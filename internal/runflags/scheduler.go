// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package runflags

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// schedule takes the number of nodes, this node's number, the place to meet and the job's name from the variables of a
// scheduler, where options and PET_ variables do not say. It tells what it took.
func (o *Options) schedule(v values, lookup func(string) (string, bool)) error {
	get := func(name string) string {
		value, _ := lookup(name)
		return value
	}
	if v["standalone"] != "" {
		return nil
	}
	if index := get("JOB_COMPLETION_INDEX"); index != "" && v["nnodes"] != "" {
		v.otherwise("node-rank", index) // a Kubernetes Job knows its index, not its size
	}
	if v["nnodes"] != "" {
		return nil
	}
	switch {
	case get("SLURM_STEP_NUM_NODES") != "" && get("SLURM_NODEID") != "":
		return o.slurm(v, get)
	case get("SKYPILOT_NODE_RANK") != "" && get("SKYPILOT_NUM_NODES") != "":
		o.take(v, "SkyPilot", get("SKYPILOT_NUM_NODES"), get("SKYPILOT_NODE_RANK"), firstLine(get("SKYPILOT_NODE_IPS")), get("SKYPILOT_TASK_ID"))
		v.otherwise("nproc-per-node", positive(get("SKYPILOT_NUM_GPUS_PER_NODE")))
	case get("OMPI_COMM_WORLD_SIZE") != "" && get("OMPI_COMM_WORLD_RANK") != "":
		if n := get("OMPI_COMM_WORLD_LOCAL_SIZE"); n != "1" {
			return fmt.Errorf("mpirun has started %s launchers on this host: start one on each (mpirun --map-by ppr:1:node) and let it start the workers, or use --standalone", n)
		}
		if get("OMPI_COMM_WORLD_SIZE") == "1" {
			return nil
		}
		if v["rdzv-endpoint"] == "" && v["master-addr"] == "" {
			return errors.New("mpirun does not tell where the nodes can meet: give --rdzv-endpoint HOST:PORT, an address of one of them")
		}
		o.take(v, "Open MPI", get("OMPI_COMM_WORLD_SIZE"), get("OMPI_COMM_WORLD_RANK"), "", "")
	}
	return nil
}

func (o *Options) slurm(v values, get func(string) string) error {
	nodes := get("SLURM_STEP_NUM_NODES")
	if tasks := get("SLURM_STEP_NUM_TASKS"); tasks != "" && tasks != nodes {
		return fmt.Errorf("srun has started %s launchers on %s nodes: start one on each (srun --ntasks-per-node=1) and let it start the workers, or use --standalone", tasks, nodes)
	}
	id := get("SLURM_JOB_ID")
	if step := get("SLURM_STEP_ID"); step != "" {
		id += "." + step
	}
	if nodes != "1" {
		o.take(v, "Slurm", nodes, get("SLURM_NODEID"), firstHost(get("SLURM_STEP_NODELIST")), id)
	}
	v.otherwise("nproc-per-node", positive(get("SLURM_GPUS_ON_NODE")))
	return nil
}

// take fills in what was not given.
func (o *Options) take(v values, who, nodes, node, host, id string) {
	v.otherwise("nnodes", nodes)
	v.otherwise("node-rank", node)
	if v["rdzv-endpoint"] == "" && v["master-addr"] == "" && host != "" {
		v["rdzv-endpoint"] = host
		v.otherwise("rdzv-backend", "c10d")
		if node == "0" { // the host's own name may resolve to another address than the others see
			v["rdzv-conf"] = strings.TrimPrefix(v["rdzv-conf"]+",is_host=1", ",")
		}
	}
	v.otherwise("rdzv-id", id)
	o.Notes = append(o.Notes, fmt.Sprintf("%s: %s nodes, this is number %s; they meet at %s", who, nodes, node, v["rdzv-endpoint"]+v["master-addr"]))
}

// otherwise sets an option that was not given.
func (v values) otherwise(name, value string) {
	if _, given := v[name]; !given && value != "" {
		v[name] = value
	}
}

// positive returns a number above 0, else nothing.
func positive(text string) string {
	if n, err := strconv.Atoi(text); err != nil || n < 1 {
		return ""
	}
	return text
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(line)
}

// firstHost returns the first host of Slurm's lists: "gnode[10,20-22],x1" is gnode10 and so on.
func firstHost(list string) string {
	open := strings.IndexByte(list, '[')
	if comma := strings.IndexByte(list, ','); open < 0 || comma >= 0 && comma < open {
		name, _, _ := strings.Cut(list, ",")
		return name
	}
	end := strings.IndexByte(list[open:], ']')
	if end < 0 {
		return ""
	}
	first, _, _ := strings.Cut(list[open+1:open+end], ",")
	first, _, _ = strings.Cut(first, "-")
	rest, _, _ := strings.Cut(list[open+end+1:], ",")
	return list[:open] + first + rest
}
