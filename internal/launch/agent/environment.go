// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/launch/rundir"
	"github.com/cohort-dist/cohort/internal/store/storegate"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
)

// place is where the workers of this node stand in an attempt of the job.
type place struct {
	attempt     int
	node, nodes int                    // GROUP_RANK, GROUP_WORLD_SIZE
	base, world int                    // the first rank of this node, WORLD_SIZE
	roles       []launchcore.RolePlace // in the order of the configuration's
	host        string                 // where the launcher is that hosts the store, "" if that is this one
	addr        string                 // of the store
	port        int
	gateway     netip.AddrPort   // of this node to the store, if it has one
	secure      bool             // the store accepts only gateways
	ours        bool             // the store is a launcher's, not rank 0's
	firstMember elastic.ID       // the member that is local rank 0
	roster      []nodecoord.Node // the first of the nodes
	iface       string           // through which other nodes reach this one, "" if PyTorch finds it
}

// address is that of the store.
func (p place) address() string { return net.JoinHostPort(p.addr, strconv.Itoa(p.port)) }

// asked is where the launcher itself asks the store: like the workers of this node.
func (p place) asked() string {
	if p.gateway.IsValid() {
		return p.gateway.String()
	}
	return p.address()
}

// storeName is what the workers behind a gateway are told of the store.
func (p place) storeName() string {
	if p.secure {
		return storegate.OverTLS + p.address()
	}
	return p.address()
}

// rank returns the global rank of a worker.
func (p place) rank(local int) cohort.Rank { return cohort.Rank(p.base + local) }

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

// variables collects what a worker gets on top of the launcher's own environment.
type variables struct {
	set   []string
	role  *Role
	given map[string]bool // the names that the role sets
	clash error           // the role sets a variable of the launcher
}

func newVariables(role *Role) *variables {
	v := &variables{role: role, given: map[string]bool{}}
	for _, variable := range role.Env {
		name, _, _ := strings.Cut(variable, "=")
		v.given[name] = true
	}
	return v
}

// add sets a variable that only the launcher may set.
func (v *variables) add(name, value string) {
	v.set = append(v.set, name+"="+value)
	if v.given[name] {
		v.clash = refuse("role %s sets %s, which is the launcher's to set", v.role.Name, name)
	}
}

// addNumber is add of a number.
func (v *variables) addNumber(name string, value int) { v.add(name, strconv.Itoa(value)) }

// addDefault sets a variable unless the user has set it.
func (v *variables) addDefault(name, value string) {
	if !v.isSet(name) {
		v.add(name, value)
	}
}

// isSet reports whether the user has set a variable, for the role or for the launcher.
func (v *variables) isSet(name string) bool {
	_, found := os.LookupEnv(name)
	return found || v.given[name]
}

// environment returns the variables that a worker gets on top of the launcher's own environment. They are those of
// torchrun, of all versions, and the additions that docs/from-torchrun.md lists.
func (c Config) environment(p place, local int, run *rundir.Dir) ([]string, error) {
	role, _ := c.roleOf(local)
	v := newVariables(role)
	localRank := local
	if c.VirtualLocalRank {
		device, err := c.device(local)
		if err != nil {
			return nil, err
		}
		v.add("CUDA_VISIBLE_DEVICES", device)
		localRank = 0
	}
	c.addRanks(v, p, local, localRank)
	c.addElastic(v, p, local, run)
	c.addOwn(v, p, local, run)
	return append(v.set, role.Env...), v.clash
}

// addRanks adds the numbers of a worker and the address of the store.
func (c Config) addRanks(v *variables, p place, local, localRank int) {
	v.add("RANK", p.rank(local).String())
	v.addNumber("WORLD_SIZE", p.world)
	v.addNumber("LOCAL_RANK", localRank)
	v.addNumber("LOCAL_WORLD_SIZE", c.Workers)
	v.addNumber("GROUP_RANK", p.node)
	v.addNumber("GROUP_WORLD_SIZE", p.nodes)
	role, number := c.roleOf(local)
	in := p.role(role.Name)
	v.add("ROLE_NAME", role.Name)
	v.addNumber("ROLE_RANK", in.Base+number)
	v.addNumber("ROLE_WORLD_SIZE", in.World)
	addr, port := p.addr, p.port
	if p.gateway.IsValid() {
		addr, port = p.gateway.Addr().String(), int(p.gateway.Port())
		v.add(storegate.EnvStore, p.storeName())
	}
	v.add("MASTER_ADDR", addr)
	v.addNumber("MASTER_PORT", port)
}

// addElastic adds what torchrun's agent sets.
func (c Config) addElastic(v *variables, p place, local int, run *rundir.Dir) {
	v.addNumber("TORCHELASTIC_RESTART_COUNT", p.attempt)
	v.addNumber("TORCHELASTIC_MAX_RESTARTS", c.MaxRestarts)
	v.add("TORCHELASTIC_RUN_ID", c.RunID)
	v.add("TORCHELASTIC_USE_AGENT_STORE", map[bool]string{true: "True", false: "False"}[p.ours])
	v.add("TORCHELASTIC_ERROR_FILE", run.ErrorFile(p.attempt, local))
	v.add("TORCHELASTIC_SIGNALS_TO_HANDLE", c.SignalNames)
	if c.Workers > 1 {
		v.addDefault("OMP_NUM_THREADS", "1")
	}
	v.addDefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1") // the shim sets its older name for PyTorch before 2.2
}

// addOwn adds what torchrun does not set.
func (c Config) addOwn(v *variables, p place, local int, run *rundir.Dir) {
	v.add("COHORT_RUN", run.Path)
	if c.MaxMembers > 0 {
		v.add(elastic.EnvMember, (p.firstMember + elastic.ID(local)).String())
	}
	if len(c.AllowUIDs) > 0 {
		v.add(peeruid.Env, peeruid.Format(c.AllowUIDs))
	}
	if p.iface != "" && !v.isSet(glooInterface) && !v.isSet(rpcInterface) {
		v.add(glooInterface, p.iface)
		v.add(rpcInterface, p.iface)
	}
	v.addDefault("PYTHONFAULTHANDLER", "1")
	attempt := strconv.Itoa(p.attempt)
	v.addDefault("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", filepath.Join(run.Path, "nccl_pipe_"+attempt+"_rank_"))
	if !v.isSet("TORCH_NCCL_TRACE_BUFFER_SIZE") { // its older name
		v.addDefault("TORCH_FR_BUFFER_SIZE", "2000") // as newer versions have by themselves
	}
	v.addDefault("TORCH_FR_DUMP_TEMP_FILE", filepath.Join(run.Path, RecorderPrefix+attempt+"_rank_"))
	if run.Shim == "" {
		return
	}
	path := run.Shim
	if old := os.Getenv("PYTHONPATH"); old != "" {
		path += string(os.PathListSeparator) + old
	}
	v.add("PYTHONPATH", path)
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

// CheckEnvironment finds variables that cannot be set before anything is started.
func (c Config) CheckEnvironment() error {
	local := 0
	for _, r := range c.Roles {
		local += r.Workers
		if _, err := c.environment(place{}, local-1, &rundir.Dir{Shim: "shim"}); err != nil { // the last one has the highest number
			return err
		}
	}
	return nil
}
