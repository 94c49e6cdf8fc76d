// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package jobfile reads the description of a job with several roles, the file given to "cohort run -f".
package jobfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// File is a job.
type File struct {
	// Name is the job's id, "" for none.
	Name string `yaml:"name"`
	// Options are those of "cohort run", by their names without dashes in front.
	Options map[string]Scalar `yaml:"options"`
	Roles   []Role            `yaml:"roles"`
}

// Role is a part of the workers.
type Role struct {
	Name string `yaml:"name"`
	// Workers is a number, or auto, cpu or gpu; "" is 1.
	Workers Scalar            `yaml:"workers"`
	Program Words             `yaml:"program"`
	Module  bool              `yaml:"module"`
	Python  string            `yaml:"python"`
	Dir     string            `yaml:"dir"`
	Env     map[string]Scalar `yaml:"env"`
}

// Scalar is a value as it is written: 3, true, text.
type Scalar string

// UnmarshalYAML takes a scalar of any type.
func (s *Scalar) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: a single value is wanted here", n.Line)
	}
	*s = Scalar(n.Value)
	return nil
}

// Words are a program and its arguments: a list, or one word.
type Words []string

// UnmarshalYAML takes a list of scalars or one.
func (w *Words) UnmarshalYAML(n *yaml.Node) error {
	var all []Scalar
	if n.Kind == yaml.SequenceNode {
		if err := n.Decode(&all); err != nil {
			return err
		}
	} else {
		var one Scalar
		if err := n.Decode(&one); err != nil {
			return err
		}
		all = []Scalar{one}
	}
	*w = nil
	for _, s := range all {
		*w = append(*w, string(s))
	}
	return nil
}

// maxFile bounds a file.
const maxFile = 1 << 20

// Parse reads a file.
func Parse(data []byte) (*File, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("it has %d bytes; at most %d are read", len(data), maxFile)
	}
	var f File
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it is empty")
		}
		return nil, err
	}
	if err := d.Decode(&File{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("it holds more than one document")
	}
	if len(f.Roles) == 0 {
		return nil, errors.New("it has no roles")
	}
	for i, r := range f.Roles {
		switch {
		case r.Name == "":
			return nil, fmt.Errorf("role %d has no name", i+1)
		case len(r.Program) == 0 || r.Program[0] == "":
			return nil, fmt.Errorf("role %s has no program", r.Name)
		case slices.ContainsFunc(f.Roles[:i], func(o Role) bool { return o.Name == r.Name }):
			return nil, fmt.Errorf("two roles have the name %s", r.Name)
		}
	}
	return &f, nil
}

// OptionNames returns the names of the options, sorted.
func (f *File) OptionNames() []string { return slices.Sorted(maps.Keys(f.Options)) }

// Flag says what a value means for an option that takes none.
func (s Scalar) Flag() (bool, error) {
	b, err := strconv.ParseBool(string(s))
	if err != nil {
		return false, fmt.Errorf("%q is neither true nor false", string(s))
	}
	return b, nil
}
