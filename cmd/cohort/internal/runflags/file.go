// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package runflags

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/jobfile"
	"github.com/cohort-dist/cohort/launch"
)

// ofRoles are the options that the roles of a file replace.
var ofRoles = []string{"nproc-per-node", "module", "no-python", "role"}

// fromFile reads the file of --file, nil if there is none, and adds its options that were not given.
func (v values) fromFile(sys System, program []string, from sources) (*jobfile.File, error) {
	name := v["file"]
	if name == "" {
		return nil, nil //nolint:nilnil // a missing --file is not an error
	}
	if len(program) > 0 {
		return nil, fmt.Errorf("--file %s says what to run, and so does %q", name, program[0])
	}
	for _, other := range ofRoles {
		if v[other] != "" {
			return nil, fmt.Errorf("--%s: with --file the roles of the file say that", other)
		}
	}
	data, err := sys.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("--file: %w", err)
	}
	f, err := jobfile.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("--file %s: %w", name, err)
	}
	v.otherwise("rdzv-id", f.Name)
	for _, key := range f.OptionNames() {
		o, err := find(key)
		if err != nil {
			return nil, fmt.Errorf("--file %s: line %d: options: %w", name, f.OptionLine(key), err)
		}
		if slices.Contains(ofRoles, o.name) || o.name == "file" {
			return nil, fmt.Errorf("--file %s: line %d: options: %s: the roles say what is run, and how many workers do", name,
				f.OptionLine(key), key)
		}
		value := f.Options[key]
		if o.flag {
			on, err := value.Flag()
			if err != nil {
				return nil, fmt.Errorf("--file %s: line %d: options: %s: %w", name, f.OptionLine(key), key, err)
			}
			if !on {
				continue
			}
			value = "1"
		}
		if _, given := v[o.name]; !given {
			v[o.name], from[o.name] = string(value), fmt.Sprintf("--file %s: line %d: options: %s", name, f.OptionLine(key), key)
		}
	}
	return f, nil
}

// roles takes the roles of a file.
func (o *Options) roles(ctx context.Context, f *jobfile.File, name string, sys System) error {
	if f == nil {
		return nil
	}
	for _, r := range f.Roles {
		n, err := o.workers(ctx, string(r.Workers), sys)
		if err != nil {
			return fmt.Errorf("--file %s: line %d: role %s: workers %w", name, r.Line, r.Name, err)
		}
		role := launch.Role{Name: r.Name, Workers: n, Program: r.Program, Python: r.Python, Dir: r.Dir}
		if r.Module {
			role.How = launch.Module
		}
		for _, name := range slices.Sorted(maps.Keys(r.Env)) {
			role.Env = append(role.Env, name+"="+string(r.Env[name]))
		}
		o.Roles = append(o.Roles, role)
	}
	return nil
}
