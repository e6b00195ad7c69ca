// Operatorkinds checks that each document on standard input is a ServiceMonitor or a PrometheusRule by the Prometheus
// operator's own types, without a field that the operator does not know.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"
)

func main() {
	documents, err := check(os.Stdin)
	if err == nil && documents == 0 {
		err = errors.New("no document on standard input")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "operatorkinds:", err)
		os.Exit(1)
	}
}

func check(input io.Reader) (documents int, err error) {
	reader := yaml.NewYAMLReader(bufio.NewReader(input))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err == nil {
			err = checkDocument(document)
		}
		if err != nil {
			return documents, err
		}
		documents++
	}
}

func checkDocument(document []byte) error {
	var kind meta.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	if kind.APIVersion != "monitoring.coreos.com/v1" {
		return fmt.Errorf("%s is no version of these kinds", kind.APIVersion)
	}
	switch kind.Kind {
	case monitoring.ServiceMonitorsKind:
		var monitor monitoring.ServiceMonitor
		if err := strict.UnmarshalStrict(document, &monitor); err != nil {
			return err
		}
		if len(monitor.Spec.Endpoints) == 0 {
			return fmt.Errorf("%s: no endpoint", monitor.Name)
		}
	case monitoring.PrometheusRuleKind:
		var rule monitoring.PrometheusRule
		if err := strict.UnmarshalStrict(document, &rule); err != nil {
			return err
		}
		if len(rule.Spec.Groups) == 0 {
			return fmt.Errorf("%s: no group", rule.Name)
		}
	default:
		return fmt.Errorf("%s is neither a ServiceMonitor nor a PrometheusRule", kind.Kind)
	}
	return nil
}
