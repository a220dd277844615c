package headrace.spark;

import org.apache.spark.sql.catalyst.analysis.NamedRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanExecBase;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;

/**
 * Plans a read of one source as Spark does, without the projection that Spark puts on top of it.
 *
 * <p>The projection is for sources in whose rows Spark's operators cannot look. Rows of a source in Python are made by
 * Spark itself, of Arrow batches, and are what the projection would make of them. Where a query has a projection or a
 * condition of its own, or Spark plans something else than is expected here, its own plan is left alone.
 */
public final class RowsAsTheyAre extends SparkStrategy {
  private final SparkStrategy planner;
  private final String source;

  public RowsAsTheyAre(SparkStrategy planner, String source) {
    this.planner = planner;
    this.source = source;
  }

  public Seq apply(LogicalPlan plan) {
    Seq none = (Seq) Nil$.MODULE$;
    if (!(plan instanceof NamedRelation) || !((NamedRelation) plan).name().equals(this.source)) {
      return none;
    }
    Seq planned = this.planner.apply(plan);
    if (planned.size() != 1 || !(planned.head() instanceof ProjectExec)) {
      return none;
    }
    ProjectExec project = (ProjectExec) planned.head();
    SparkPlan scan = project.child();
    if (!(scan instanceof DataSourceV2ScanExecBase) || !project.projectList().equals(scan.output())) {
      return none;
    }
    return (Seq) Nil$.MODULE$.$colon$colon(scan);
  }
}
