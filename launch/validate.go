// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"crypto/rand"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/agent"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/launch/program"
	"github.com/cohort-dist/cohort/internal/sys/numabind"
	"github.com/cohort-dist/cohort/internal/sys/signame"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

// op begins the text of every error of this package.
const op = "launch"

// refuse returns the error of a configuration that cannot be run.
func refuse(format string, args ...any) error {
	return cohort.Newf(op, cohort.InvalidArgument, format, args...)
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// withDefaults returns the configuration with its defaults, or says what is wrong.
func (c Config) withDefaults() (Config, error) {
	switch {
	case len(c.Roles) == 0 && (len(c.Program) == 0 || c.Program[0] == ""):
		return c, refuse("no program to run")
	case len(c.Supervisor) == 0:
		return c, refuse("Config.Supervisor is not set")
	case c.Workers <= 0 && len(c.Roles) == 0:
		return c, refuse("%d workers; there must be at least one", c.Workers)
	case c.MaxRestarts < 0:
		return c, refuse("%d restarts; 0 is the least", c.MaxRestarts)
	case strings.Contains(c.RunID, "/") || printable.Line(c.RunID) != c.RunID:
		return c, refuse("the job's id %q is used in file names and must not hold a slash or what cannot be printed", c.RunID)
	}
	if err := c.takeRoles(); err != nil {
		return c, err
	}
	setDefault(&c.Nodes.Min, 1)
	setDefault(&c.Nodes.Max, c.Nodes.Min)
	setDefault(&c.Members.Min, c.Members.Max)
	for _, check := range []func() error{c.checkShown, c.checkNodes, c.checkProtection, c.checkMembers} {
		if err := check(); err != nil {
			return c, err
		}
	}
	c.setDefaults()
	return c, nil
}

// setDefaults fills in what was not given.
func (c *Config) setDefaults() {
	if c.Nodes.Max > 1 {
		setDefault(&c.RunID, c.Nodes.Protection.id())
		setDefault(&c.RunID, agent.DefaultRunID)
	}
	setDefault(&c.RunID, strings.ToLower(rand.Text())[:16])
	setDefault(&c.Nodes.JoinTimeout, 10*time.Minute)
	setDefault(&c.Nodes.LastCall, 30*time.Second)
	setDefault(&c.Nodes.Silence, 5*time.Second)
	setDefault(&c.Grace, 30*time.Second)
	setDefault(&c.Linger, 5*time.Second)
	setDefault(&c.Interrupt, 2*time.Second)
	setDefault(&c.Backend, "c10d")
	setDefault(&c.SignalNames, "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
	setDefault(&c.Logs.Prefix, "[${role_name}${local_rank}]:")
}

// takeRoles makes of a configuration with one program one with one role, and checks those of others.
func (c *Config) takeRoles() error {
	if len(c.Roles) == 0 {
		setDefault(&c.Role, "default")
		c.Roles = []Role{{Name: c.Role, Workers: c.Workers, Program: c.Program, How: c.How, Python: c.Python}}
	} else {
		c.Roles = slices.Clone(c.Roles)
	}
	c.Workers = 0
	for i, r := range c.Roles {
		var err error
		if c.Roles[i], err = r.withDefaults(); err != nil {
			return err
		}
		if slices.ContainsFunc(c.Roles[:i], func(o Role) bool { return o.Name == r.Name }) {
			return refuse("two roles have the name %s", r.Name)
		}
		c.Workers += r.Workers
	}
	c.Program, c.Role = c.Roles[0].Program, c.Roles[0].Name
	return nil
}

// withDefaults fills in what was not given.
func (r Role) withDefaults() (Role, error) {
	switch {
	case r.Name == "":
		return r, refuse("a role has no name")
	case len(r.Program) == 0 || r.Program[0] == "":
		return r, refuse("role %s: no program to run", r.Name)
	case r.Workers <= 0:
		return r, refuse("role %s: %d workers; there must be at least one", r.Name, r.Workers)
	}
	if r.How == Auto {
		r.How = Executable
		if program.ForPython(r.Dir, r.Program[0]) {
			r.How = Script
		}
	}
	if r.How != Executable {
		setDefault(&r.Python, program.Python())
	}
	return r, nil
}

// interpreter is what runs the program, with its options; nothing executes it.
func (r Role) interpreter() []string {
	switch r.How {
	case Script:
		return []string{r.Python, "-u"}
	case Module:
		return []string{r.Python, "-u", "-m"}
	case RunPath:
		return []string{r.Python, "-u", "-c", runPath}
	case Auto, Executable:
	}
	return nil
}

// runPath is what torchrun's worker does with --run-path: PyTorch's torch.distributed.run.run_script_path.
const runPath = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"

// program returns the program of a role with its arguments.
func (c Config) program(r Role) []string {
	if !c.PassLocalRank {
		return r.Program
	}
	return slices.Insert(slices.Clone(r.Program), 1, "--local-rank=${local_rank}")
}

// checkShown checks the ranks whose output is shown.
func (c Config) checkShown() error {
	for _, r := range c.Logs.ShowRanks {
		if r < 0 || r >= c.Workers {
			return refuse("the local rank %d to show does not exist: this node has %d workers", r, c.Workers)
		}
	}
	for option, m := range map[string]StdMap{"--redirects": c.Logs.Redirects, "--tee": c.Logs.Tee} {
		for _, r := range slices.Sorted(maps.Keys(m.Ranks)) {
			if r >= c.Workers {
				return refuse("%s %d:%d: the local rank %d does not exist: this node has %d workers, from 0 on",
					option, r, int(m.Ranks[r]), r, c.Workers)
			}
		}
	}
	return nil
}

// checkNodes checks what concerns several nodes.
func (c Config) checkNodes() error {
	n := c.Nodes
	if n.Min < 1 || n.Max < n.Min || n.Max > nodecoord.MaxNodes {
		return refuse("%d to %d nodes: the first must be at least 1 and at most the second", n.Min, n.Max)
	}
	if n.Max == 1 {
		return nil
	}
	if n.Endpoint == "" {
		return refuse("a job on several nodes needs an endpoint where they meet: --rdzv-endpoint HOST:PORT")
	}
	switch _, port, err := net.SplitHostPort(n.Endpoint); {
	case err != nil:
		return refuse("the endpoint %q is not HOST:PORT", n.Endpoint)
	case port == "0":
		return refuse("the endpoint %s has no port: the nodes of a job need one that all of them know", n.Endpoint)
	case n.Rank != nil && (*n.Rank < 0 || *n.Rank >= n.Max):
		return refuse("node rank %d: it must be below the number of nodes, %d", *n.Rank, n.Max)
	case c.NoShim:
		return refuse("without the shim rank 0 would have to host the store, which works on one node only")
	}
	return nil
}

// checkMembers checks what concerns a group whose members change.
func (c Config) checkMembers() error {
	m, spread := c.Members, c.Nodes.Max > 1
	switch {
	case m.Max == 0 && m.Min == 0:
		return nil
	case m.Min < 1 || m.Max < m.Min:
		return refuse("%d to %d members: the first must be at least 1 and at most the second", m.Min, m.Max)
	case spread && c.MaxRestarts > 0:
		return refuse(
			"--members on several nodes and --max-restarts exclude each other: a node whose workers have ended can be started again " +
				"by hand, as spares")
	case !spread && m.Max > c.Workers:
		return refuse("%d members, but %d workers: those beyond the members are spares (--nproc-per-node %d for one spare)", m.Max,
			c.Workers, m.Max+1)
	case c.NoShim:
		return refuse("--members needs a store that survives every worker, and with --no-shim rank 0 hosts it")
	case c.Hang.Timeout > 0:
		return refuse(
			"--members and --hang-timeout exclude each other: a spare waits all the time, and a member that hangs is replaced")
	}
	return nil
}

// forAgent returns the configuration of the agent, or says what is wrong.
func (c Config) forAgent() (agent.Config, error) {
	c, err := c.withDefaults()
	if err != nil {
		return agent.Config{}, err
	}
	a := c.plain()
	a.Protection = c.Nodes.forAgent()
	signals, err := signame.Parse(c.SignalNames)
	if err != nil {
		return a, refuse("--signals-to-handle: %w", err)
	}
	for _, s := range signals {
		a.Ending[int(s)] = true
	}
	if a.CPUs, err = numabind.Plan(c.NUMABinding, c.Workers); err != nil {
		return a, refuse("--numa-binding %s: %w", c.NUMABinding, err)
	}
	return a, a.CheckEnvironment()
}

// plain returns the fields of the agent's configuration that need no check.
func (c Config) plain() agent.Config {
	n, l := c.Nodes, c.Logs
	a := agent.Config{
		RunID: c.RunID, Workers: c.Workers, MaxRestarts: c.MaxRestarts, MinMembers: c.Members.Min, MaxMembers: c.Members.Max,
		MasterAddr: c.MasterAddr, MasterPort: c.MasterPort,
		MinNodes: n.Min, MaxNodes: n.Max, Endpoint: n.Endpoint, LocalAddr: n.LocalAddr, NodeRank: -1, StorePort: n.StorePort,
		StoreGateway: n.StoreGateway,
		JoinTimeout:  n.JoinTimeout, LastCall: n.LastCall, Silence: n.Silence,
		AllowUIDs: c.AllowUIDs,
		Grace:     c.Grace, Linger: c.Linger, Interrupt: c.Interrupt, SignalNames: c.SignalNames, Ending: map[int]bool{},
		HangTimeout: c.Hang.Timeout, HangKill: c.Hang.Kill,
		LogDir: l.Dir, Redirects: l.Redirects.streams(c.Workers), Tee: l.Tee.streams(c.Workers), ShowRanks: l.ShowRanks, Prefix: l.Prefix,
		StdoutFilters: l.StdoutFilters, StderrFilters: l.StderrFilters,
		Events: c.Events, Backend: c.Backend, VirtualLocalRank: c.VirtualLocalRank, NoShim: c.NoShim, Supervisor: c.Supervisor,
	}
	if n.Host != HostAuto {
		a.Host = new(n.Host == HostAlways)
	}
	if n.Rank != nil {
		a.NodeRank = *n.Rank
	}
	for _, r := range c.Roles {
		a.Roles = append(a.Roles, agent.Role{
			Name: r.Name, Workers: r.Workers, Interpreter: r.interpreter(), Program: c.program(r),
			Dir: r.Dir, Env: r.Env,
		})
	}
	return a
}
