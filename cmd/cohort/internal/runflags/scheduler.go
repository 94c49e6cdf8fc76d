// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package runflags

import (
	"cmp"
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
func (s variables) otherwise(option, variable, value string) (taken bool) {
	if _, given := s.v[option]; given || value == "" {
		return false
	}
	s.v[option], s.from[option] = value, variable
	return true
}

// schedule takes the number of nodes, this node's number, the place to meet and the job's name from the variables of a
// scheduler, where options and PET_ variables do not say. It notes what it took.
func (o *Options) schedule(s variables) error {
	v, get := s.v, s.get
	if v["standalone"] != "" {
		return nil
	}
	if v["nnodes"] != "" {
		o.numbered(s)
		return nil
	}
	switch {
	case get("OMPI_COMM_WORLD_SIZE") != "" && get("OMPI_COMM_WORLD_RANK") != "": // first: mpirun may use srun for its own daemons
		return o.openMPI(s)
	case get("SLURM_STEP_NUM_NODES") != "" && get("SLURM_NODEID") != "":
		return o.slurm(s)
	case get("SKYPILOT_NODE_RANK") != "" && get("SKYPILOT_NUM_NODES") != "":
		if get("SKYPILOT_NUM_NODES") != "1" {
			s.otherwise("rdzv-id", "SKYPILOT_TASK_ID", get("SKYPILOT_TASK_ID"))
			o.take(s, "SkyPilot", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", firstLine(get("SKYPILOT_NODE_IPS")))
		}
		o.takeWorkers(s, "SKYPILOT_NUM_GPUS_PER_NODE")
	}
	return nil
}

// numbered is a job whose size is given: a pod of a Kubernetes Job knows its number, not how many there are. Pods of a Job may also be
// jobs of their own.
func (o *Options) numbered(s variables) {
	if _, nodes, err := Range("nnodes", s.v["nnodes"]); err == nil && nodes == 1 {
		return
	}
	const index = "JOB_COMPLETION_INDEX"
	if s.otherwise("node-rank", index, s.get(index)) {
		o.note("Kubernetes: this is node %s of %s (%s)", s.get(index), s.v["nnodes"], index)
	}
	if s.from["nnodes"] == "PET_NNODES" {
		number := ""
		if n := s.v["node-rank"]; n != "" {
			number = ", this is number " + n
		}
		o.note("PET_ variables: %s nodes%s%s", s.v["nnodes"], number, s.v.meeting())
	}
}

func (o *Options) openMPI(s variables) error {
	if n := s.get("OMPI_COMM_WORLD_LOCAL_SIZE"); n != "" && n != "1" {
		return fmt.Errorf(
			"mpirun has started %s launchers on this host: start one on each (mpirun --map-by ppr:1:node) and let it start the "+
				"workers, or use --standalone", n)
	}
	if s.get("OMPI_COMM_WORLD_SIZE") == "1" {
		return nil
	}
	if s.v["rdzv-endpoint"] == "" && s.v["master-addr"] == "" {
		return errors.New(
			"mpirun does not set an address where the nodes can meet: give --rdzv-endpoint HOST:PORT, an address of one of them")
	}
	o.take(s, "Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "", "")
	return nil
}

func (o *Options) slurm(s variables) error {
	nodes, node := s.get("SLURM_STEP_NUM_NODES"), s.get("SLURM_NODEID")
	if tasks := s.get("SLURM_STEP_NUM_TASKS"); tasks != "" && tasks != nodes {
		return fmt.Errorf(
			"srun has started %s launchers on %s nodes: start one on each (srun --ntasks-per-node=1) and let it start the workers, "+
				"or use --standalone", tasks, nodes)
	}
	if n, err := strconv.Atoi(nodes); err == nil {
		// the components of a heterogeneous step count their nodes together
		if number, odd := strconv.Atoi(node); odd == nil && number >= n {
			return fmt.Errorf(
				"SLURM_NODEID is %s, but SLURM_STEP_NUM_NODES %s, as in a heterogeneous step: give --nnodes, --node-rank and "+
					"--rdzv-endpoint", node, nodes)
		}
	}
	if nodes != "1" {
		id := s.get("SLURM_JOB_ID")
		if step := s.get("SLURM_STEP_ID"); step != "" {
			id += "." + step
		}
		s.otherwise("rdzv-id", "SLURM_JOB_ID", id)
		o.take(s, "Slurm", "SLURM_STEP_NUM_NODES", "SLURM_NODEID", "SLURM_STEP_NODELIST", firstHost(s.get("SLURM_STEP_NODELIST")))
	}
	o.takeWorkers(s, "SLURM_GPUS_ON_NODE")
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
	o.note("%s: %s nodes, this is number %s%s", who, s.get(nodes), s.get(node), v.meeting())
}

// takeWorkers starts one worker for each GPU that the scheduler has given to the node.
func (o *Options) takeWorkers(s variables, variable string) {
	if s.v["file"] != "" {
		return // its roles say how many
	}
	if n, err := strconv.Atoi(s.get(variable)); err == nil && n > 0 && s.otherwise("nproc-per-node", variable, s.get(variable)) {
		o.note("%d workers: one for each GPU (%s)", n, variable)
	}
}

// meeting says where the nodes meet, "" if that is not known.
func (v values) meeting() string {
	place := cmp.Or(v["rdzv-endpoint"], v["master-addr"])
	if place == "" {
		return ""
	}
	return "; they meet at " + place
}

func (o *Options) note(format string, args ...any) {
	o.Notes = append(o.Notes, fmt.Sprintf(format, args...))
}

// otherwise sets an option that was not given.
func (v values) otherwise(name, value string) {
	if _, given := v[name]; !given && value != "" {
		v[name] = value
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(line)
}

// firstHost returns the first host of Slurm's lists: "gnode[10,20-22],x1" is gnode10 and so on, and "rack[1-2]n[1-4]" begins with rack1n1.
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
	return list[:open] + first + firstHost(list[open+end+1:])
}
