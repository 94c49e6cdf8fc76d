// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/launch/rundir"
)

// place is where the workers of this node stand in an attempt of the job.
type place struct {
	attempt     int
	node, nodes int                    // GROUP_RANK, GROUP_WORLD_SIZE
	base, world int                    // the first rank of this node, WORLD_SIZE
	roles       []launchcore.RolePlace // in the order of the configuration's
	addr        string                 // of the store
	port        int
	ours        bool         // the store is a launcher's, not rank 0's
	firstMember elastic.ID   // the member that is local rank 0
	roster      []NodeStatus // the first of the nodes
}

// address is that of the store.
func (p place) address() string { return net.JoinHostPort(p.addr, strconv.Itoa(p.port)) }

// role returns where the workers of this node stand in a role.
func (p place) role(name string) launchcore.RolePlace {
	for _, r := range p.roles {
		if r.Name == name {
			return r
		}
	}
	return launchcore.RolePlace{}
}

// rolesAmong are the places in all roles of a node among others like it.
func (c Config) rolesAmong(node, nodes int) []launchcore.RolePlace {
	var all []launchcore.RolePlace
	for _, r := range c.Roles {
		all = append(all, launchcore.RolePlace{Name: r.Name, Base: node * r.Workers, World: nodes * r.Workers})
	}
	return all
}

// rank returns the global rank of a worker.
func (p place) rank(local int) cohort.Rank { return cohort.Rank(p.base + local) }

// environment returns the variables that a worker gets on top of the launcher's own environment. They are those of
// torchrun, of all versions, and the additions that docs/launcher.md lists.
func (c Config) environment(p place, local int, run *rundir.Dir) ([]string, error) {
	localRank := strconv.Itoa(local)
	var set []string
	role, number := c.roleOf(local)
	given := map[string]bool{}
	for _, v := range role.Env {
		name, _, _ := strings.Cut(v, "=")
		given[name] = true
	}
	var clash error
	add := func(name, value string) {
		set = append(set, name+"="+value)
		if given[name] {
			clash = refuse("role %s sets %s, which is the launcher's to set", role.Name, name)
		}
	}
	unlessSet := func(name, value string) {
		if _, found := os.LookupEnv(name); !found && !given[name] {
			add(name, value)
		}
	}
	if c.VirtualLocalRank {
		device, err := c.device(local)
		if err != nil {
			return nil, err
		}
		add("CUDA_VISIBLE_DEVICES", device)
		localRank = "0"
	}
	add("RANK", p.rank(local).String())
	add("WORLD_SIZE", strconv.Itoa(p.world))
	add("LOCAL_RANK", localRank)
	add("LOCAL_WORLD_SIZE", strconv.Itoa(c.Workers))
	add("GROUP_RANK", strconv.Itoa(p.node))
	add("GROUP_WORLD_SIZE", strconv.Itoa(p.nodes))
	in := p.role(role.Name)
	add("ROLE_NAME", role.Name)
	add("ROLE_RANK", strconv.Itoa(in.Base+number))
	add("ROLE_WORLD_SIZE", strconv.Itoa(in.World))
	add("MASTER_ADDR", p.addr)
	add("MASTER_PORT", strconv.Itoa(p.port))
	add("TORCHELASTIC_RESTART_COUNT", strconv.Itoa(p.attempt))
	add("TORCHELASTIC_MAX_RESTARTS", strconv.Itoa(c.MaxRestarts))
	add("TORCHELASTIC_RUN_ID", c.RunID)
	agentStore := "False"
	if p.ours {
		agentStore = "True"
	}
	add("TORCHELASTIC_USE_AGENT_STORE", agentStore)
	add("TORCHELASTIC_ERROR_FILE", run.ErrorFile(p.attempt, local))
	add("TORCHELASTIC_SIGNALS_TO_HANDLE", c.SignalNames)
	if c.Workers > 1 {
		unlessSet("OMP_NUM_THREADS", "1")
	}
	unlessSet("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1") // the shim sets its older name for PyTorch before 2.2

	// What torchrun does not set.
	add("COHORT_RUN", run.Path)
	if c.MaxMembers > 0 {
		add(elastic.EnvMember, (p.firstMember + elastic.ID(local)).String())
	}
	unlessSet("PYTHONFAULTHANDLER", "1")
	unlessSet("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", filepath.Join(run.Path, "nccl_pipe_"+strconv.Itoa(p.attempt)+"_rank_"))
	if _, older := os.LookupEnv("TORCH_NCCL_TRACE_BUFFER_SIZE"); !older && !given["TORCH_NCCL_TRACE_BUFFER_SIZE"] {
		unlessSet("TORCH_FR_BUFFER_SIZE", "2000") // as newer versions have by themselves
	}
	unlessSet("TORCH_FR_DUMP_TEMP_FILE", filepath.Join(run.Path, recorderFiles+strconv.Itoa(p.attempt)+"_rank_"))
	if run.Shim != "" {
		path := run.Shim
		if old := os.Getenv("PYTHONPATH"); old != "" {
			path += string(os.PathListSeparator) + old
		}
		add("PYTHONPATH", path)
	}
	return append(set, role.Env...), clash
}

// device returns the one device that a worker with a virtual local rank sees.
func (c Config) device(local int) (string, error) {
	list, found := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	if !found {
		return strconv.Itoa(local), nil
	}
	devices := strings.Split(list, ",")
	if local >= len(devices) || list == "" {
		return "", refuse("--virtual-local-rank: CUDA_VISIBLE_DEVICES=%s has no device for local rank %d", list, local)
	}
	return strings.TrimSpace(devices[local]), nil
}

// checkEnvironment finds variables that cannot be set before anything is started.
func (c Config) checkEnvironment() error {
	local := 0
	for _, r := range c.Roles {
		local += r.Workers
		if _, err := c.environment(place{}, local-1, &rundir.Dir{Shim: "shim"}); err != nil { // the last one has the highest number
			return err
		}
	}
	return nil
}
