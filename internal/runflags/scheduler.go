// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package runflags

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// variables are those of a scheduler, and where they go.
type variables struct {
	v      values
	from   sources
	lookup func(string) (string, bool)
}

func (s variables) get(name string) string {
	value, _ := s.lookup(name)
	return value
}

// otherwise sets an option that was not given to what a variable says.
func (s variables) otherwise(option, variable, value string) {
	if _, given := s.v[option]; !given && value != "" {
		s.v[option], s.from[option] = value, variable
	}
}

// schedule takes the number of nodes, this node's number, the place to meet and the job's name from the variables of a
// scheduler, where options and PET_ variables do not say. It tells what it took.
func (o *Options) schedule(s variables) error {
	v, get := s.v, s.get
	if v["standalone"] != "" {
		return nil
	}
	if v["nnodes"] != "" { // a Kubernetes Job knows its index, not its size
		s.otherwise("node-rank", "JOB_COMPLETION_INDEX", get("JOB_COMPLETION_INDEX"))
		return nil
	}
	switch {
	case get("SLURM_STEP_NUM_NODES") != "" && get("SLURM_NODEID") != "":
		return o.slurm(s)
	case get("SKYPILOT_NODE_RANK") != "" && get("SKYPILOT_NUM_NODES") != "":
		s.otherwise("rdzv-id", "SKYPILOT_TASK_ID", get("SKYPILOT_TASK_ID"))
		o.take(s, "SkyPilot", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", firstLine(get("SKYPILOT_NODE_IPS")))
		s.otherwise("nproc-per-node", "SKYPILOT_NUM_GPUS_PER_NODE", positive(get("SKYPILOT_NUM_GPUS_PER_NODE")))
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
		o.take(s, "Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "", "")
	}
	return nil
}

func (o *Options) slurm(s variables) error {
	nodes := s.get("SLURM_STEP_NUM_NODES")
	if tasks := s.get("SLURM_STEP_NUM_TASKS"); tasks != "" && tasks != nodes {
		return fmt.Errorf("srun has started %s launchers on %s nodes: start one on each (srun --ntasks-per-node=1) and let it start the workers, or use --standalone", tasks, nodes)
	}
	if nodes != "1" {
		id := s.get("SLURM_JOB_ID")
		if step := s.get("SLURM_STEP_ID"); step != "" {
			id += "." + step
		}
		s.otherwise("rdzv-id", "SLURM_JOB_ID", id)
		o.take(s, "Slurm", "SLURM_STEP_NUM_NODES", "SLURM_NODEID", "SLURM_STEP_NODELIST", firstHost(s.get("SLURM_STEP_NODELIST")))
	}
	s.otherwise("nproc-per-node", "SLURM_GPUS_ON_NODE", positive(s.get("SLURM_GPUS_ON_NODE")))
	return nil
}

// take fills in what was not given from the variables with the number of nodes, the number of this one and the host to meet at.
func (o *Options) take(s variables, who, nodes, node, hosts, host string) {
	v := s.v
	s.otherwise("nnodes", nodes, s.get(nodes))
	s.otherwise("node-rank", node, s.get(node))
	if v["rdzv-endpoint"] == "" && v["master-addr"] == "" && host != "" {
		v["rdzv-endpoint"], s.from["rdzv-endpoint"] = host, hosts
		s.otherwise("rdzv-backend", hosts, "c10d")
		if s.get(node) == "0" { // the host's own name may resolve to another address than the others see
			v["rdzv-conf"] = strings.TrimPrefix(v["rdzv-conf"]+",is_host=1", ",")
		}
	}
	o.Notes = append(o.Notes, fmt.Sprintf("%s: %s nodes, this is number %s; they meet at %s", who, s.get(nodes), s.get(node), v["rdzv-endpoint"]+v["master-addr"]))
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
