// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"slices"

	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/launch/program"
)

// Role is a group of workers of a job that run the same program.
type Role struct {
	Name    string
	Workers int
	// Program, How and Python are as in [Config].
	Program []string
	How     How
	Python  string
	// Dir is the folder that the workers run in; "": that of the launcher.
	Dir string
	// Env has variables for the workers of this role ("NAME=value").
	Env []string
}

// withDefaults fills in what is not said.
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
	if r.How == Script || r.How == Module {
		setDefault(&r.Python, program.Python())
	}
	return r, nil
}

// takeRoles makes of a configuration with one program one with one role, and checks those of others.
func takeRoles(c *Config) error {
	if len(c.Roles) == 0 {
		setDefault(&c.Role, "default")
		c.Roles = []Role{{Name: c.Role, Workers: c.Workers, Program: c.Program, How: c.How, Python: c.Python}}
	} else {
		c.Roles = slices.Clone(c.Roles)
		c.Workers = 0
	}
	for i, r := range c.Roles {
		var err error
		if c.Roles[i], err = r.withDefaults(); err != nil {
			return err
		}
		if slices.ContainsFunc(c.Roles[:i], func(o Role) bool { return o.Name == r.Name }) {
			return refuse("two roles have the name %s", r.Name)
		}
	}
	if c.Workers == 0 {
		for _, r := range c.Roles {
			c.Workers += r.Workers
		}
	}
	c.Program, c.Role = c.Roles[0].Program, c.Roles[0].Name
	return nil
}

// sizes tells other nodes how many workers of each role are here.
func (c Config) sizes() []launchcore.Role {
	var all []launchcore.Role
	for _, r := range c.Roles {
		all = append(all, launchcore.Role{Name: r.Name, Workers: r.Workers})
	}
	return all
}

// roleOf returns the role of a worker and its number in the role on this node. Roles have consecutive ranks.
func (c Config) roleOf(local int) (role *Role, number int) {
	for i := range c.Roles {
		if local < c.Roles[i].Workers {
			return &c.Roles[i], local
		}
		local -= c.Roles[i].Workers
	}
	return &c.Roles[len(c.Roles)-1], local
}
