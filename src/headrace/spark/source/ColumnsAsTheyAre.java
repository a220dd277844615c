package headrace.spark;

import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NamedRelation;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.UnaryNode;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.BatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.MicroBatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory$MapInBatchEvaluator;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory$MapInBatchEvaluator$$anon$1;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.DataType$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.AccumulatorV2;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.Iterator$;
import scala.collection.immutable.Map;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;

/**
 * Plans a read of one source as Spark does, but has it give Spark columns instead of rows.
 *
 * <p>A source in Python gives Arrow batches. Spark makes rows of each before anything looks at it, and then, by a
 * projection, the same rows again. Sources in Java may give batches of columns, and what works on them is compiled
 * together with what takes values out of the columns: a value that a query does not want is never touched, and where rows
 * are wanted, they are made once. Arrow's vectors are such columns.
 *
 * <p>Where Spark plans something else than is expected here, its own plan is left alone, and so is every plan of a session
 * whose setting is not (or no longer) on. Tasks need {@link Columns} and {@link Batches}, which come to them in a jar: in
 * one process with the driver, where it cannot be missing.
 *
 * <p>The compiler that Spark brings along knows no type arguments: hence the casts, and {@code Object get()}.
 */
public final class ColumnsAsTheyAre extends SparkStrategy {
  private final SparkStrategy planner;
  private final String source;
  private final String setting;

  public ColumnsAsTheyAre(SparkStrategy planner, String source, String setting) {
    this.planner = planner;
    this.source = source;
    this.setting = setting;
  }

  public Seq apply(LogicalPlan plan) {
    Seq none = (Seq) Nil$.MODULE$;
    if (!SQLConf$.MODULE$.get().getConfString(this.setting, "false").equalsIgnoreCase("true")) {
      return none;
    }
    LogicalPlan leaf = plan;
    while (leaf instanceof Project || leaf instanceof Filter) {
      leaf = (LogicalPlan) ((UnaryNode) leaf).child();
    }
    if (!(leaf instanceof NamedRelation) || !((NamedRelation) leaf).name().equals(this.source)) {
      return none;
    }
    Seq planned = this.planner.apply(plan);
    SparkPlan made = planned.size() == 1 ? inColumns((SparkPlan) planned.head()) : null;
    return made == null ? none : (Seq) Nil$.MODULE$.$colon$colon(made);
  }

  /**
   * The same plan over a scan that gives columns; null if it is no plan that is known here.
   *
   * <p>Rows are made of them right above it. A batch is there only until the next, whose memory is the same: operators
   * that take columns may keep some, as that of Arrow functions in Python does.
   */
  private static SparkPlan inColumns(SparkPlan plan) {
    if (plan instanceof ProjectExec) {
      ProjectExec project = (ProjectExec) plan;
      SparkPlan child = inColumns(project.child());
      if (child == null || project.projectList().equals(child.output())) {
        return child;
      }
      return new ProjectExec(project.projectList(), child);
    }
    if (plan instanceof FilterExec) {
      FilterExec filter = (FilterExec) plan;
      SparkPlan child = inColumns(filter.child());
      return child == null ? null : new FilterExec(filter.condition(), child);
    }
    if (plan instanceof MicroBatchScanExec) {
      MicroBatchScanExec scan = (MicroBatchScanExec) plan;
      return !(scan.readerFactory() instanceof PythonStreamingPartitionReaderFactory)
          ? null
          : new ColumnarToRowExec(
              new MicroBatchScan(
                  scan.output(),
                  scan.scan(),
                  scan.stream(),
                  scan.start(),
                  scan.end(),
                  scan.keyGroupedPartitioning(),
                  scan.ordering()));
    }
    if (plan instanceof BatchScanExec) {
      BatchScanExec scan = (BatchScanExec) plan;
      return !(scan.readerFactory() instanceof PythonPartitionReaderFactory)
          ? null
          : new ColumnarToRowExec(
              new BatchScan(
                  scan.output(),
                  scan.scan(),
                  scan.runtimeFilters(),
                  scan.ordering(),
                  scan.table(),
                  scan.keyGroupedPartitioning()));
    }
    return null;
  }

  /** Spark copies nodes of a plan by the constructor that takes all their fields: it is the same as its parent's. */
  public static final class MicroBatchScan extends MicroBatchScanExec {
    private transient Columns columns;

    public MicroBatchScan(
        Seq output,
        Scan scan,
        MicroBatchStream stream,
        Offset start,
        Offset end,
        Option keyGroupedPartitioning,
        Option ordering) {
      super(output, scan, stream, start, end, keyGroupedPartitioning, ordering);
    }

    public boolean supportsColumnar() {
      return true;
    }

    public synchronized PartitionReaderFactory readerFactory() {
      if (this.columns == null) {
        this.columns = new Columns((PythonStreamingPartitionReaderFactory) super.readerFactory());
      }
      return this.columns;
    }
  }

  /** The same for a read that is no stream. */
  public static final class BatchScan extends BatchScanExec {
    private transient Columns columns;

    public BatchScan(
        Seq output, Scan scan, Seq runtimeFilters, Option ordering, Table table, Option keyGroupedPartitioning) {
      super(output, scan, runtimeFilters, ordering, table, keyGroupedPartitioning);
    }

    public boolean supportsColumnar() {
      return true;
    }

    public synchronized PartitionReaderFactory readerFactory() {
      if (this.columns == null) {
        this.columns = new Columns((PythonPartitionReaderFactory) super.readerFactory());
      }
      return this.columns;
    }
  }

  /** How executors read: Spark's own way, as far as the batches that Python gives. */
  public static final class Columns implements PartitionReaderFactory {
    private static final long serialVersionUID = 1L;

    private final UserDefinedPythonDataSource source;
    private final byte[] read;
    private final Option artifacts;
    private final Option session;
    private final StructType schema;

    Columns(PythonStreamingPartitionReaderFactory rows) {
      this.source =
          rows.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$source;
      this.read =
          rows.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$pickledReadFunc;
      this.schema =
          rows.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$outputSchema;
      this.artifacts =
          rows.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$jobArtifactUUID;
      this.session =
          rows.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$sessionUUID;
    }

    Columns(PythonPartitionReaderFactory rows) {
      this.source = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$source;
      this.read = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$pickledReadFunc;
      this.schema = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$outputSchema;
      this.artifacts =
          rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$jobArtifactUUID;
      this.session = rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$sessionUUID;
    }

    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }

    public PartitionReader createReader(InputPartition partition) {
      throw new UnsupportedOperationException("columns are given, not rows");
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
      byte[] pickled =
          partition instanceof PythonInputPartition
              ? ((PythonInputPartition) partition).pickedPartition()
              : ((PythonStreamingInputPartition) partition).pickedPartition();
      return new Batches(this.source, this.read, this.schema, this.artifacts, this.session, pickled);
    }
  }

  /** The batches of one partition. */
  static final class Batches implements PartitionReader {
    private final UserDefinedPythonDataSource source;
    private final StructType schema;
    private final Map metrics = PythonCustomMetric.pythonMetrics();
    private final Iterator batches;

    Batches(
        UserDefinedPythonDataSource source,
        byte[] read,
        StructType schema,
        Option artifacts,
        Option session,
        byte[] partition) {
      this.source = source;
      this.schema = schema;
      MapInBatchEvaluatorFactory factory =
          source.createMapInBatchEvaluatorFactory(
              read,
              "read_from_data_source",
              UserDefinedPythonDataSource.readInputSchema(),
              schema,
              this.metrics,
              artifacts,
              session);
      ArrowPythonRunner runner =
          new MapInBatchEvaluatorFactory$MapInBatchEvaluator$$anon$1(
              (MapInBatchEvaluatorFactory$MapInBatchEvaluator) factory.createEvaluator(), new int[][] {{0}});
      // What Python is given is one row with one struct, in which is what the partition is pickled to.
      InternalRow row = new GenericInternalRow(new Object[] {new GenericInternalRow(new Object[] {partition})});
      TaskContext task = TaskContext.get();
      this.batches =
          runner.compute(Iterator$.MODULE$.single(Iterator$.MODULE$.single(row)), task.partitionId(), task);
    }

    public boolean next() {
      return this.batches.hasNext();
    }

    public Object get() {
      ColumnarBatch batch = (ColumnarBatch) this.batches.next();
      ArrowColumnVector struct = (ArrowColumnVector) batch.column(0);
      if (!DataType$.MODULE$.equalsIgnoreCompatibleNullability(this.schema, struct.dataType())) {
        throw new IllegalStateException("the source gave " + struct.dataType() + " where it is to give " + this.schema);
      }
      ColumnVector[] columns = new ColumnVector[this.schema.length()];
      for (int each = 0; each < columns.length; each++) {
        columns[each] = struct.getChild(each);
      }
      return new ColumnarBatch(columns, batch.numRows());
    }

    public CustomTaskMetric[] currentMetricsValues() {
      Map values = (Map) Map$.MODULE$.empty();
      for (Iterator each = this.metrics.iterator(); each.hasNext(); ) {
        Tuple2 metric = (Tuple2) each.next();
        values = (Map) values.updated(metric._1(), ((AccumulatorV2) metric._2()).value());
      }
      return this.source.createPythonTaskMetrics(values);
    }

    public void close() {}
  }
}
